"""What a run looks like afterwards: metrics, tables, summary, folder."""
