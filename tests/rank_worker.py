"""One rank process of a RankPool: waits for jobs and runs each in its own process group."""

import faulthandler
import functools
import gc
import importlib
import os
import pickle
import signal
import threading
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist


def end_with_parent():
    """A rank must not outlive the test run, whatever way that ends."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            threading.Event().wait(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def call(rank, backend, ranks, store, job):
    module, name, args, kwargs = job
    function = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(minutes=10),
        device_id=device,
    )
    if device is None:
        dist.barrier()  # a short job must not leave while another rank still connects to it
    value = function(*args, **kwargs)
    gc.collect()
    gc.freeze()  # modules that this job was the first to import
    dist.destroy_process_group()
    return value


def answer(rank, backend, message):
    try:
        return pickle.dumps(("value", call(rank, backend, *message)))
    except BaseException as error:  # pytest's own failures are no Exception
        return pickle.dumps(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def main(channel, rank, backend, env, output):
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo",
        **({"CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" else {}),
        **env,
    )
    gc.freeze()  # collections take 0.2 s with all that torch and transformers have made
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where a silent rank is
    end_with_parent()
    torch.set_num_threads(1)
    while True:
        try:
            message = pickle.loads(channel.recv_bytes())
        except EOFError:
            return
        channel.send_bytes(answer(rank, backend, message))
