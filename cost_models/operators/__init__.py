"""One module per kind of GPU work: each maps sizes to Seconds with a stated formula."""
