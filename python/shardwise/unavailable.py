"""Names of DeepSpeed that this version lacks, so that errors say more than "no attribute"."""

ENGINE = {
    "save_checkpoint": "save engine.state_dict(), which is collective, on rank 0",
    "load_checkpoint": "use engine.load_state_dict(), which loads weights",
    "save_16bit_model": "save engine.state_dict(), which is collective, on rank 0",
    "save_fp16_model": "save engine.state_dict(), which is collective, on rank 0",
    "train_batch": "write the loop with engine(...), engine.backward(loss), engine.step()",
    "eval_batch": "call engine.eval() and engine(...)",
    "compile": "set block.forward = torch.compile(block.forward) before initialize()",
    "allreduce_gradients": "engine.backward() and engine.step() communicate by themselves",
    "offload_states": "",
    "reload_states": "",
    "get_batch_info": "",
}
PACKAGE = {
    "init_inference": "",
    "tp_model_init": "",
    "ops": "name the optimizer in the configuration",
    "moe": "",
    "pipe": "",
    "PipelineModule": "",
    "get_accelerator": "use torch.cuda, or engine.device",
}
ZERO = {
    "TiledLinear": "",
}


def missing(name: str, table: dict[str, str], owner: str) -> AttributeError:
    """What to raise for an attribute that does not exist."""
    if name not in table:
        return AttributeError(f"{owner} has no attribute {name!r}")
    advice = f"; {table[name]}" if table[name] else ""
    return AttributeError(f"{owner}.{name} is not available in this version of shardwise{advice}")
