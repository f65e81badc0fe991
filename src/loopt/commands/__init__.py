"""One file per command of the command line."""

COMMANDS = (
    *("reproduce", "train", "eval", "lm-eval", "generate", "score", "runs", "tasks", "data", "thoughts", "analyze"),
    *("report", "plan", "prove", "export", "import"),
)
