"""The paper's theorems as weights that run: each file builds one construction and checks it against its algorithm."""
