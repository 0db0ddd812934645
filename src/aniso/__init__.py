"""aniso"""
