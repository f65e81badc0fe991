"""Evaluation: the paper's 19 downstream tasks in three stages, render prompts, predict, score."""
