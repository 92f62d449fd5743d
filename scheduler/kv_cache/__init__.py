"""KV cache: blocks, the free queue, block hashes, the pool, one manager per attention kind, the
coordinator.
"""
