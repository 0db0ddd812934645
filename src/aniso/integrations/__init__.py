"""aniso inside other libraries: `sklearn` has a transformer for scikit-learn, `langchain` a vector store for LangChain.

Each module needs its library. Importing aniso, or this package, imports none of them.
"""

__all__: list[str] = []
