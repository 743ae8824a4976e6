"""The plug-in for TensorFlow: compiled for the installed one, loaded, hooked into its Python.

Importing this package, unlike ``tensorwire.tf``, imports no TensorFlow and loads nothing.
"""
