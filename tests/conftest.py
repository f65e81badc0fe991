"""Its being here puts tests/ on the path, for the helpers that lie beside it."""
