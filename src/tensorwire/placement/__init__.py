"""Placement of variables on ps: the costs of variables, and the strategies.

Importing it needs no TensorFlow; functions that use TensorFlow import it themselves. Training
scripts use `tensorwire.tf.placement`.
"""
