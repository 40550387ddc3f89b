"""`shardwise launch` with real processes: output, variables, deaths, signals, leftovers."""

import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from importlib.metadata import version
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "shardwise"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built")


class Job:
    """A launcher and everything it starts, known by a mark in their environment."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.process = None

    def script(self, text, name="job.py"):
        path = self.folder / name
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
        return str(path)

    def start(self, *arguments, **options):
        environment = dict(os.environ, SW_TEST_MARK=self.mark, **options.pop("env", {}))
        environment.pop("OMP_NUM_THREADS", None)
        self.process = subprocess.Popen(
            [str(PROGRAM), *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            stdin=options.pop("stdin", subprocess.DEVNULL),
            # A shell without job control starts background jobs with the interrupt ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        return self.process

    def run(self, *arguments, timeout=20, **options):
        self.start(*arguments, **options)
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.decode("utf-8", "replace"), err.decode()

    def launch(self, ranks, *arguments, **options):
        return self.run("launch", "-n", ranks, *arguments, **options)

    def living(self):
        """Processes of this job; zombies have no environment and are found by their parent."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"SW_TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def wait_for(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError("waited in vain")

    def pids(self, ranks):
        """Waits for the files pid_K that the scripts of some tests write."""
        paths = [self.folder / f"pid_{rank}" for rank in range(ranks)]
        self.wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
        return [int(path.read_text()) for path in paths]

    def assert_gone(self, seconds=3):
        end = time.monotonic() + seconds
        while self.living() and time.monotonic() < end:
            time.sleep(0.02)
        left = self.living()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes were left behind"


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    if job.process is not None and job.process.poll() is None:
        job.process.kill()
        job.process.wait()
    for pipe in (job.process.stdout, job.process.stderr) if job.process else ():
        if pipe is not None:
            pipe.close()
    job.assert_gone()


SAY_PID = "open(f'pid_{rank}', 'w').write(str(os.getpid()))\n"


def last_block(err):
    """The lines from the last 'rank K (pid' on."""
    lines = err.splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("[shardwise] rank "))
    return lines[start:]


# Output ---------------------------------------------------------------------------------------


def test_lines_carry_the_rank_and_streams_stay_apart(job):
    script = job.script("print('one\\ntwo', rank)\nprint('problem', rank, file=sys.stderr)")
    code, out, err = job.launch(3, script)
    assert code == 0
    expected = [f"[rank {r}] {word}" for r in range(3) for word in ("one", f"two {r}")]
    assert sorted(out.splitlines()) == sorted(expected)
    errors = sorted(line for line in err.splitlines() if not line.startswith("[shardwise]"))
    assert errors == [f"[rank {r}] problem {r}" for r in range(3)]


def test_many_lines_of_many_ranks_stay_whole(job):
    script = job.script(
        "line = (f'{rank}' * 150).encode()\n"
        "for i in range(400):\n    os.write(1, b''.join(b'%d %s\\n' % (i * 100 + j, line)"
        " for j in range(100)))"
    )
    code, out, _ = job.launch(2, script)
    assert code == 0
    seen = {0: [], 1: []}
    for line in out.splitlines():
        match = re.fullmatch(r"\[rank (\d)\] (\d+) (\d+)", line)
        assert match and match[3] == match[1] * 150, line[:80]
        seen[int(match[1])].append(int(match[2]))
    assert seen == {0: list(range(40000)), 1: list(range(40000))}


def test_binary_output_and_a_last_line_without_end(job):
    script = job.script(
        "os.write(1, bytes(b for b in range(256) if b not in (10, 13)) + b'\\nend')"
    )
    job.start("launch", "-n", 1, script)
    out, _ = job.process.communicate(timeout=20)
    expected = bytes(b for b in range(256) if b not in (10, 13))
    assert out == b"[rank 0] " + expected + b"\n[rank 0] end\n"


def test_endless_line_costs_little_memory(job):
    script = job.script(
        "for i in range(400): os.write(1, b'z' * 100000)\n"
        "status = open(f'/proc/{os.getppid()}/status').read()\n"
        "sys.stderr.write([l for l in status.splitlines() if l.startswith('VmHWM')][0])"
    )
    code, out, err = job.launch(1, script)
    assert code == 0
    assert sum(line.count("z") for line in out.splitlines()) == 40_000_000
    kibibytes = int(re.search(r"VmHWM:\s+(\d+) kB", err)[1])
    assert kibibytes < 35_000  # of the launcher; the line has 40 MB


def test_progress_bar_in_a_file_becomes_its_last_state(job):
    script = job.script(
        "for i in range(50): sys.stderr.write(f'\\r{i}%'); sys.stderr.flush()\n"
        "sys.stderr.write('\\r100%\\n')\nprint('a\\r')"
    )
    code, out, err = job.launch(2, script)
    assert code == 0
    assert sorted(out.splitlines()) == ["[rank 0] a", "[rank 1] a"]
    bars = [line for line in err.splitlines() if line.startswith("[rank")]
    assert sorted(bars) == ["[rank 0] 100%", "[rank 1] 100%"]


def screen_after(data):
    """The lines that a terminal shows: carriage return, line feed and erase-to-end understood."""
    lines, row, column = [[]], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", data, re.S):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [[] for _ in range(row + 1 - len(lines))]
        elif token == "\x1b[K":
            del lines[row][column:]
        elif not token.startswith("\x1b"):
            lines[row][column : column + 1] = token
            column += 1
    return ["".join(line).rstrip() for line in lines]


def read_terminal(master, process, seconds=15):
    data = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            try:
                data += os.read(master, 65536)
            except OSError:
                break
        elif process.poll() is not None:
            break
    process.wait(timeout=5)
    return data.decode()


def test_progress_bar_on_a_terminal_stays_at_the_bottom(job):
    script = job.script(
        "if rank == 0:\n"
        "    for i in range(0, 101, 10):\n"
        "        sys.stderr.write(f'\\rstep {i} of 100'); sys.stderr.flush(); time.sleep(0.05)\n"
        "    sys.stderr.write('\\n')\n"
        "    print(os.environ['SHARDWISE_TERMINAL'], os.environ['COLUMNS'])\n"
        "else:\n"
        "    for i in range(5): print('other', i); time.sleep(0.08)\n"
    )
    master, slave = pty.openpty()
    # Wide enough that nothing wraps.
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    environment = {"COLUMNS": "", "NO_COLOR": ""}
    job.start("launch", "-n", 2, script, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    data = read_terminal(master, job.process)
    os.close(master)
    assert job.process.returncode == 0
    screen = [line for line in screen_after(data) if line and not line.startswith("[shardwise]")]
    assert screen.count("[rank 0] step 100 of 100") == 1
    assert [line for line in screen if "step" in line] == ["[rank 0] step 100 of 100"]
    assert [line for line in screen if "other" in line] == [f"[rank 1] other {i}" for i in range(5)]
    assert "[rank 0] 1 200" in screen
    assert "\x1b[36m[rank 0]\x1b[0m" in data  # coloured
    assert data.count("step 50 of 100") >= 1  # drawn in place before the end
    assert data.count("[rank 0]") == 2  # no prefix for each update


def test_log_directory_and_quiet_ranks(job):
    script = job.script("print('out', rank)\nprint('err', rank, file=sys.stderr)")
    code, out, _ = job.launch(2, "--log-dir", "logs/run", script)
    assert code == 0
    assert out == "[rank 0] out 0\n"
    for rank in range(2):
        text = (job.folder / f"logs/run/rank_{rank}.log").read_text()
        assert sorted(text.splitlines()) == [f"err {rank}", f"out {rank}"]
    code, out, _ = job.launch(2, "--quiet-ranks", script)
    assert (code, out) == (0, "[rank 0] out 0\n")
    code, out, _ = job.launch(2, "--log-dir", "logs/run", "--console", "all", script)
    assert sorted(out.splitlines()) == ["[rank 0] out 0", "[rank 1] out 1"]
    text = (job.folder / "logs/run/rank_1.log").read_text()
    assert text.count("out 1") == 2 and "=== started" in text  # continued, not overwritten


def test_reader_that_is_late_gets_everything(job):
    script = job.script("for i in range(30): os.write(1, (b'%06d' % i + b'y' * 999_993 + b'\\n'))")
    job.start("launch", "-n", 1, script)
    time.sleep(1.5)  # more than pipes and buffers hold waits in the rank
    assert job.process.poll() is None
    out, _ = job.process.communicate(timeout=20)
    assert job.process.returncode == 0
    assert out.count(b"y") == 30 * 999_993
    assert [int(n) for n in re.findall(rb"\d{6}", out)] == list(range(30))


def test_filter_behind_a_rank_still_passes_its_lines_on(job):
    script = 'exec > >(sleep 0.2; sed "s/^/filtered /"); echo one; echo two'
    code, out, _ = job.launch(1, "bash", "-c", script)
    assert (code, out) == (0, "[rank 0] filtered one\n[rank 0] filtered two\n")


def test_reader_that_goes_away_ends_the_job(job):
    script = job.script("while True: print('x' * 100)")
    job.start("launch", "-n", 2, script)
    job.process.stdout.read(1000)
    job.process.stdout.close()
    assert job.process.wait(timeout=10) == 128 + signal.SIGPIPE


# Variables and programs -----------------------------------------------------------------------

SHOW_ENVIRONMENT = "import json; os.write(1, (json.dumps(dict(os.environ)) + '\\n').encode())"


def environments(out):
    found = {}
    for line in out.splitlines():
        prefix, _, text = line.partition("] ")
        found[int(prefix.removeprefix("[rank "))] = json.loads(text)
    return found


def test_variables_of_torchrun_and_deepspeed(job):
    code, out, err = job.launch(
        2,
        job.script(SHOW_ENVIRONMENT),
        env={"CUDA_VISIBLE_DEVICES": "3,1", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    )
    assert code == 0
    seen = environments(out)
    assert sorted(seen) == [0, 1]
    same = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "3,1",
    }
    for rank, environment in seen.items():
        for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
            assert environment[name] == str(rank)
        assert {name: environment[name] for name in same} == same
        assert "TORCHELASTIC_USE_AGENT_STORE" not in environment
        assert 1024 < int(environment["MASTER_PORT"]) < 65536
        assert int(environment["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert sum("OMP_NUM_THREADS" in line for line in err.splitlines()) == 1


def test_second_machine_of_two_and_deepspeed_spellings(job):
    code, out, _ = job.run(
        "launch", "--num_gpus", 2, "--num_nodes=2", "--node_rank", 1, "--master_addr", "10.1.2.3",
        "--master_port", 2345, "--pass-local-rank", job.script(
            SHOW_ENVIRONMENT.replace("dict(os.environ)", "dict(os.environ, ARGS=sys.argv[1:])")
        ), "--lr", "1",
    )  # fmt: skip
    assert code == 0
    seen = environments(out)
    assert sorted(seen) == [2, 3]
    assert [seen[r]["LOCAL_RANK"] for r in (2, 3)] == ["0", "1"]
    assert {seen[r]["WORLD_SIZE"] for r in seen} == {"4"}
    assert {seen[r]["MASTER_ADDR"] for r in seen} == {"10.1.2.3"}
    assert {seen[r]["MASTER_PORT"] for r in seen} == {"2345"}
    assert {seen[r]["CROSS_RANK"] for r in seen} == {"1"}
    assert seen[3]["ARGS"] == ["--local_rank=1", "--lr", "1"]


def test_native_programs_modules_and_interpreters(job):
    code, out, _ = job.launch(2, "/bin/echo", "-n", "a b", "*")
    assert code == 0
    assert sorted(out.splitlines()) == ["[rank 0] a b *", "[rank 1] a b *"]
    code, out, _ = job.launch(1, "sh", "-c", "echo $LOCAL_RANK of $WORLD_SIZE")
    assert (code, out) == (0, "[rank 0] 0 of 1\n")
    (job.folder / "mine.py").write_text("import sys; print(__name__, sys.executable, sys.argv[1:])")
    code, out, _ = job.launch(1, "-m", "mine", "-x", env={"PYTHONPATH": str(job.folder)})
    assert (code, out) == (0, f"[rank 0] __main__ {PROGRAM.parent / 'python3'} ['-x']\n")
    code, out, _ = job.launch(1, "--python", "/usr/bin/env", "--no-python", "printenv", "RANK")
    assert (code, out) == (0, "[rank 0] 0\n")


def test_first_rank_reads_standard_input(job):
    script = job.script("print(repr(sys.stdin.read()))")
    job.start("launch", "-n", 2, script, stdin=subprocess.PIPE)
    out, _ = job.process.communicate(b"text", timeout=20)
    assert sorted(out.decode().splitlines()) == ["[rank 0] 'text'", "[rank 1] ''"]


def test_torch_process_group_meets_over_the_variables(job):
    script = job.script(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([float(rank + 1)]); dist.all_reduce(x)\n"
        "print(dist.get_world_size(), x.item()); dist.destroy_process_group()"
    )
    code, out, err = job.launch(2, script, timeout=60)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[rank 0] 2 3.0", "[rank 1] 2 3.0"]


# Deaths ---------------------------------------------------------------------------------------


def test_exit_code_and_cause_of_the_failing_rank(job):
    script = job.script(
        "if rank == 1:\n    for i in range(30): print('line', i)\n    sys.exit(7)\ntime.sleep(60)"
    )
    start = time.monotonic()
    code, _, err = job.launch(3, script)
    assert code == 7
    assert time.monotonic() - start < 5
    block = last_block(err)
    assert re.fullmatch(
        r"\[shardwise\] rank 1 \(pid \d+\) exited with code 7 after \d+\.\d s; "
        r"last lines it wrote:",
        block[0],
    )
    assert block[1:] == [f"[shardwise]   | line {i}" for i in range(10, 30)]


def test_killed_rank_ends_the_others_even_if_they_refuse(job):
    script = job.script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n" + SAY_PID + "time.sleep(60)"
    )
    job.start("launch", "-n", 3, "--grace", 1, script)
    pids = job.pids(3)
    os.kill(pids[2], signal.SIGKILL)
    start = time.monotonic()
    _, err = job.process.communicate(timeout=20)
    assert 0.9 < time.monotonic() - start < 4
    assert job.process.returncode == 128 + signal.SIGKILL
    block = last_block(err.decode())
    assert f"rank 2 (pid {pids[2]}) was killed by signal 9 (SIGKILL) after " in block[0]
    assert block[1] == "[shardwise]   | ready"
    assert "memory" in block[-1]


def test_the_cause_may_end_after_those_who_lost_it(job):
    """A Python rank that fails closes its connections before it has ended."""
    script = job.script("if rank == 0: sys.exit(75)\ntime.sleep(5)\nsys.exit(7)")
    start = time.monotonic()
    code, _, err = job.launch(2, script)
    assert code == 7 and time.monotonic() - start < 12
    assert "rank 1 (pid" in last_block(err)[0] and "exited with code 7" in last_block(err)[0]
    assert re.search(r"rank 0 \(pid \d+\) exited with code 75 at nearly the same time", err)


def test_a_rank_that_ended_early_is_named(job):
    script = job.script("if rank == 1: sys.exit(0)\ntime.sleep(0.5)\nsys.exit(75)")
    code, _, err = job.launch(2, script)
    assert code == 75
    assert "rank 1 had ended normally before: all ranks must run the same number of steps" in err
    assert "rank 0 (pid" in last_block(err)[0]


def test_crash_is_the_cause_though_another_rank_gave_up_just_before(job):
    script = job.script(
        SAY_PID + "while not (os.path.exists('pid_0') and open('pid_0').read()): pass\n"
        "if rank == 0:\n"
        "    while not os.path.exists('pid_1'): time.sleep(0.001)\n"
        "    os._exit(75)\n"
        "while os.path.exists('/proc/' + open('pid_0').read()): pass\n"
        "os.kill(os.getpid(), signal.SIGSEGV)"
    )
    code, _, err = job.launch(2, script)
    assert code == 128 + signal.SIGSEGV
    assert "rank 1 (pid" in last_block(err)[0] and "SIGSEGV" in last_block(err)[0]
    assert re.search(r"rank 0 \(pid \d+\) exited with code 75 at nearly the same time", err)


def test_stopped_rank_does_not_keep_the_job(job):
    script = job.script(
        "def leave(*_):\n    print('left', flush=True); os._exit(0)\n"
        "if rank == 0: signal.signal(signal.SIGTERM, leave)\n" + SAY_PID + "time.sleep(60)"
    )
    job.start("launch", "-n", 3, "--grace", 1, script)
    pids = job.pids(3)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGTERM)
    start = time.monotonic()
    out, err = job.process.communicate(timeout=20)
    assert time.monotonic() - start < 4
    assert out == b"[rank 0] left\n"  # it was continued to act on SIGTERM
    assert job.process.returncode == 128 + signal.SIGTERM
    assert f"rank 1 (pid {pids[1]}) was killed by signal 15 (SIGTERM)" in err.decode()


GRANDCHILD = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '60'], start_new_session={})\n"
    "open(f'child_{{rank}}', 'w').write(str(child.pid))\n"
)


@pytest.mark.parametrize("new_session", [False, True])
def test_grandchild_that_holds_the_output_open_is_ended(job, new_session):
    script = job.script(GRANDCHILD.format(new_session) + "print('done', rank)")
    start = time.monotonic()
    code, out, _ = job.launch(2, script)
    assert code == 0
    assert time.monotonic() - start < 5
    assert sorted(out.splitlines()) == ["[rank 0] done 0", "[rank 1] done 1"]
    job.assert_gone(0)


@pytest.mark.parametrize("refuses", [False, True])
def test_killed_launcher_leaves_nothing_behind(job, refuses):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if refuses else ""
    script = job.script(ignore + GRANDCHILD.format(False) + SAY_PID + "time.sleep(60)")
    job.start("launch", "-n", 2, script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = job.pids(2)
    if refuses:
        os.kill(pids[1], signal.SIGSTOP)
    assert len(job.living()) >= 6  # launcher, keeper, two ranks, two grandchildren
    job.process.kill()
    job.process.wait()
    job.assert_gone(3)


def test_kernel_ends_the_ranks_when_launcher_and_keeper_are_killed(job):
    script = job.script(SAY_PID + "time.sleep(60)")
    job.start("launch", "-n", 2, script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job.pids(2)
    keepers = [p for p in job.living() if "keep" in Path(f"/proc/{p}/comm").read_text()]
    assert len(keepers) == 1
    os.kill(keepers[0], signal.SIGKILL)
    job.process.kill()
    job.process.wait()
    job.assert_gone(3)


# Signals --------------------------------------------------------------------------------------


def test_interrupt_reaches_the_ranks(job):
    script = job.script(
        "try:\n    " + SAY_PID + "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True); sys.exit(1)"
    )
    job.start("launch", "-n", 2, script)
    job.pids(2)
    job.process.send_signal(signal.SIGINT)
    out, err = job.process.communicate(timeout=10)
    assert job.process.returncode == 128 + signal.SIGINT
    assert sorted(out.decode().splitlines()) == ["[rank 0] interrupted", "[rank 1] interrupted"]
    assert err.decode().splitlines()[-1] == "[shardwise] ended by SIGINT"


def test_second_signal_kills_at_once(job):
    script = job.script(
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
        + SAY_PID
        + "time.sleep(60)"
    )
    job.start("launch", "-n", 2, "--grace", 30, script)
    job.pids(2)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert job.process.poll() is None
    start = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    job.process.communicate(timeout=10)
    assert time.monotonic() - start < 2
    assert job.process.returncode == 128 + signal.SIGTERM


def test_signal_is_obeyed_while_nobody_reads_the_output(job):
    job.start("launch", "-n", 2, "yes")
    time.sleep(0.5)  # by now all pipes and buffers are full
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(timeout=8) == 128 + signal.SIGTERM


# Wrong use ------------------------------------------------------------------------------------

USAGE, IO = 64, 74


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["launch", "-n", "2", "absent.py"], IO, ["absent.py", "No such file"]),
        (["launch", "-n", "2", "./absent"], IO, ["./absent", "No such file"]),
        (["launch", "-n", "2", "absent-program"], IO, ["absent-program", "PATH"]),
        (["launch", "-n", "2", "./plain"], IO, ["./plain", "not executable", "chmod +x"]),
        (["launch", "-n", "2", "plain"], IO, ["not in PATH", "./plain"]),
        (["launch", "-n", "2", "./no_interpreter_line"], IO, ["Exec format error", "#!/bin/sh"]),
        (["launch", "-n", "2", "./"], IO, ["is a directory"]),
        (["launch", "-n", "2", "--python", "./absent", "job.py"], IO, ["./absent"]),
        (["launch", "-n", "0", "job.py"], USAGE, ["-n", "from 1", "'0'"]),
        (["launch", "-n", "two", "job.py"], USAGE, ["-n", "whole number", "'two'"]),
        (["launch", "-n", "99999", "job.py"], USAGE, ["-n", "to 4096", "'99999'"]),
        (["launch", "job.py"], USAGE, ["how many ranks", "-n 2"]),
        (["launch", "-n", "2"], USAGE, ["name the program"]),
        (["launch", "-n"], USAGE, ["-n needs a value"]),
        (["launch", "-n", "2", "--quite-ranks", "job.py"], USAGE, ["--quiet-ranks?"]),
        (["launch", "-n", "2", "--nnodes", "2", "job.py"], USAGE, ["--node-rank"]),
        (["launch", "-n", "2", "--node-rank", "1", "job.py"], USAGE, ["--nnodes 1"]),
        (["launch", "-n", "2", "--hostfile", "f", "job.py"], USAGE, ["on each machine"]),
        (["launch", "-n", "2", "--log-dir", "plain/x", "job.py"], IO, ["plain/x", "--log-dir"]),
        (["lanch"], USAGE, ["did you mean launch"]),
        ([], USAGE, ["--help"]),
    ],
)
def test_wrong_use_says_cause_and_fix(job, arguments, code, words):
    job.script("")
    (job.folder / "plain").write_text("text")
    script = job.folder / "no_interpreter_line"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    got, out, err = job.run(*arguments)
    assert (got, out) == (code, "")
    message = [line for line in err.splitlines() if "error: " in line]
    assert len(message) == 1
    for word in words:
        assert word in message[0]


def test_too_many_ranks_for_the_open_file_limit(job):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = [PROGRAM, "launch", "-n", "20", "true"]
    result = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=10)
    assert result.returncode == USAGE
    assert "at most 13 ranks" in result.stderr and "ulimit -n 84" in result.stderr
    command[3] = "13"
    result = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=10)
    assert result.returncode == 0, result.stderr


def test_help_and_version(job):
    code, out, _ = job.run("--version")
    assert code == 0 and re.fullmatch(r"shardwise \d+\.\d+\.\d+\n", out)
    for arguments in (["--help"], ["help"], ["launch", "--help"], ["help", "launch"]):
        code, out, _ = job.run(*arguments)
        assert code == 0 and out.startswith("Usage: shardwise ")


# The other sub-commands -----------------------------------------------------------------------


def test_env_says_what_was_found(job):
    code, out, err = job.run("env")
    assert code == 0, out + err
    found = {line[:18].strip(): line[18:] for line in out.splitlines()}
    assert found["torch"].startswith(version("torch").split("+")[0] + ",")
    assert Path(found["torch"].split(", ")[1]).is_file()
    assert found["python"].startswith(str(PROGRAM.parent / "python3"))
    flags = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    for feature in ("avx2", "avx512f", "avx512_bf16"):
        has = flags is not None and feature in flags[1].split()
        assert (feature in found["CPU features"].split()) == has
    for name in ("CUDA", "CUDA driver", "NCCL", "Gloo", "kernels, CPU", "kernels, CUDA"):
        assert found[name]


def test_env_without_the_library_says_so(job):
    (job.folder / "bin").mkdir()
    program = shutil.copy(PROGRAM, job.folder / "bin")
    result = subprocess.run([program, "env"], capture_output=True, text=True, timeout=20)
    assert result.returncode == 1
    assert "not found from" in result.stdout and "make build" in result.stdout
    package = job.folder / "lib/python3.99/site-packages/shardwise"
    package.mkdir(parents=True)
    (package / "libshardwise.so").write_text("no library")
    result = subprocess.run([program, "env"], capture_output=True, text=True, timeout=20)
    assert result.returncode == 1
    assert "cannot be loaded" in result.stdout and "install torch" in result.stdout


def test_config_sub_commands(job):
    (job.folder / "ds.json").write_text(
        '{"train_batch_size": 32, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
        ' "zero_optimization": {"stage": 2}}  // a comment'
    )
    code, out, _ = job.run("config", "check", "ds.json", "--world-size", 2)
    assert code == 0
    assert "32 = 4 (micro-batch) x 4 (accumulation) x 2 (ranks); ZeRO stage 2, bf16" in out
    code, _, err = job.run("config", "check", "ds.json", env={"WORLD_SIZE": "3"})
    assert code == 78 and "WORLD_SIZE" in err
    code, out, _ = job.run("config", "print", "ds.json")
    assert code == 0
    assert json.loads(out)["train_micro_batch_size_per_gpu"] == 8
    code, out, _ = job.run("config", "print", "--origins", "ds.json")
    assert code == 0
    assert json.loads(out)["zero_optimization.stage"]["origin"] == "user (ds.json)"
    code, page, _ = job.run("config", "reference")
    assert code == 0 and "zero_optimization.stage" in page.replace("`", "")
    (job.folder / "page.md").write_text(page)
    assert job.run("config", "reference", "--check", "page.md")[0] == 0
    (job.folder / "page.md").write_text(page + " ")
    code, _, err = job.run("config", "reference", "--check", "page.md")
    assert code == 1 and "page.md" in err
    code, _, err = job.run("config", "chek", "ds.json")
    assert code == USAGE and "check?" in err
    code, _, err = job.run("config", "check", "ds.json", "--world-size", 0)
    assert code == USAGE and "'0'" in err
