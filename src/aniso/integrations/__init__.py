"""aniso inside other libraries; each module needs its library, and nothing here imports one before it is asked for.

`aniso.integrations.sklearn` has a transformer for scikit-learn, `aniso.integrations.langchain` a vector store for LangChain.
"""

__all__: list[str] = []
