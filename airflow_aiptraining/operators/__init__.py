"""The life of a task: package, submit, wait, judge, export."""
