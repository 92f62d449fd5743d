"""The kinds of GPU work: each function maps sizes to seconds with a stated formula."""
