"""The results as one page that needs no other file, and as Markdown, LaTeX and CSV; every number names its runs."""
