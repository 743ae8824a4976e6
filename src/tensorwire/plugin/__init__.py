"""The plug-in: compiles it for the installed TensorFlow, loads it, and patches TensorFlow's Python.

Importing this package, unlike ``tensorwire.tf``, imports no TensorFlow and loads nothing.
"""
