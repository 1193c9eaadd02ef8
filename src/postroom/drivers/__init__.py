"""One module a store. `api.py` is what a driver must do; read it to write one."""
