"""How results are told: documents of tables and figures, as text for a screen, as Markdown and as HTML.

`document` is what all say, `text`, `markdown` and `html` write it down, `answer` is what questions give and
`folder` keeps it. `run_report` and `comparison` are the pages of runs, `screen` is what `run` prints.
"""
