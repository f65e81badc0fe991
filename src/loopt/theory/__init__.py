"""The paper's theorems as weights that run: each builds one construction and checks it against its algorithm."""
