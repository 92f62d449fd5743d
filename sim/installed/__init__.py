"""The user's own vLLM in place of the mirror: its scheduler and KV cache, under the clock and the cost model.

`engine.scheduler: vllm` asks for it. `present` says what is installed without importing it; `parts` imports
vLLM and makes its objects; `engine` drives them as the mirror is driven. Importing this package imports
nothing of vLLM.
"""
