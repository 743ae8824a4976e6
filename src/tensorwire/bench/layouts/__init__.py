"""`tensorwire k8s compare`: both layouts of a job, run and compared."""
