"""Parameter-server training at wire speed on a stock TensorFlow.

Importing this package loads neither TensorFlow nor the plug-in; importing ``tensorwire.tf`` does.
"""

__version__ = "0.3.0"
