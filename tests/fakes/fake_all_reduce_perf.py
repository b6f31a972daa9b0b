"""Stands in for all_reduce_perf: prints what the real one printed on 2x H200 (tests/data), for the sizes asked.

The first line of a copy sets BEHAVIOUR; the environment it saw is left beside the copy, for the tests to look at.
"""

import json
import os
import pathlib
import sys
import time

BEHAVIOUR = "ok"
DATA = pathlib.Path("DATA_FOLDER")
HERE = pathlib.Path(__file__).parent
HELP = "USAGE: all_reduce_perf\n\t[-b,--minbytes <min size>]\n\t[-G,--cudagraph <num graph launches>]\n"
HEADING = """# nThread 1 nGpus 2 minBytes {first} maxBytes {last} step: 2(factor) warmup iters: 5 iters: 50 agg iters: 1 validation: 1 graph: 30 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid    884 on         vm device  0 [0000:00:06] NVIDIA H200
#  Rank  1 Group  0 Pid    884 on         vm device  1 [0000:00:07] NVIDIA H200
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
CHANNELS = {14336: 0, 28672: 2, 57344: 6, 114688: 13}


def sizes(args):
    first, last = int(args["-b"]), int(args["-e"])
    factor, step = int(args.get("-f", 1)), int(args.get("-i", 0))
    while first <= last:
        yield first
        first = first * factor + step
        if factor == 1 and step == 0:
            return


def write_log(asked):
    path = os.environ.get("NCCL_DEBUG_FILE")
    if not path:
        return
    lines = ["NCCL version 2.28.9+cuda13.0"]
    names = [n for n in sorted(os.environ) if n.startswith("NCCL_") and not n.startswith("NCCL_DEBUG")]
    lines += [f"{n} set by environment to {os.environ[n]}{'.' if os.environ[n].isdigit() else ''}" for n in names]
    if int(os.environ.get("NCCL_NTHREADS", "64")) % 32:
        lines.append(f"Invalid NCCL_NTHREADS {os.environ['NCCL_NTHREADS']} (must be a multiple of 32)")
    lines.append("24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer")
    lines.append("Latency/AlgBw | Tree/    LL | Tree/ LL128 | Tree/Simple | Ring/    LL | Ring/ LL128 | Ring/Simple |")
    lines.append("    AllReduce |    8.0/ 61.1|   16.5/  0.0|   16.4/  0.0|    7.8/141.0|   17.8/  0.0|   15.2/  0.0|")
    proto = "SIMPLE" if BEHAVIOUR == "ignores_proto" else os.environ.get("NCCL_PROTO", "LL").upper()
    lines += [
        f"AllReduce: {size} Bytes -> Algo RING proto {proto} channel{{Lo..Hi}}={{0..{CHANNELS.get(size, 23)}}}"
        for size in asked
    ]
    text = "".join(f"vm:884:884 [0] NCCL INFO {line}\n" for line in lines)
    pathlib.Path(path.replace("%p", "884")).write_text(text)


def main():
    if "--help" in sys.argv:
        print(HELP + ("" if BEHAVIOUR == "text_only" else "\t[-J,--output_file <file>]\n"))
        return 0
    args = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    asked = list(sizes(args))
    with (HERE / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}) + "\n")
    write_log(asked)
    if BEHAVIOUR in ("bad-proto", "unsupported-algo"):
        sys.stdout.write((DATA / f"nccl-tests-{BEHAVIOUR}.txt").read_text())
        return 3
    if BEHAVIOUR == "garbage":
        print("Segmentation of the market\n" * 3)
        return 0
    if BEHAVIOUR == "crash":
        os.abort()
    recorded = json.loads((DATA / "nccl-tests-ll-ring.json").read_text())
    rows = {row["size"]: row for row in recorded["results"]}
    recorded["env"] = [f"{k}={v}" for k, v in os.environ.items()]
    recorded["results"] = [rows[size] for size in asked if size in rows]
    sys.stdout.write(HEADING.format(first=asked[0], last=asked[-1]))
    for row in recorded["results"]:
        if BEHAVIOUR == "wrong":
            row["in_place"]["nwrong"] = 3.0
        print(f"{row['size']:12d} {row['count']:13d}  bfloat16     sum      -1", end="", flush=True)
        if BEHAVIOUR == "hang" and row["size"] > 14336:
            pid = os.fork()
            (HERE / f"pid-{pid or os.getpid()}").touch()
            time.sleep(600)
        for half in (row["out_of_place"], row["in_place"]):
            wrong = int(half["nwrong"])
            print(f"{half['time']:9.2f} {half['alg_bw']:7.2f} {half['bus_bw']:7.2f} {wrong:7d}", end="")
        print(flush=True)
    if BEHAVIOUR == "wrong":
        recorded["out_of_bounds"] = {"count": len(asked), "okay": "false"}
    print("# Out of bounds values :", f"{len(asked)} FAILED" if BEHAVIOUR == "wrong" else "0 OK")
    print("# Avg bus bandwidth    : 1\n#")
    if "-J" in args:
        pathlib.Path(args["-J"]).write_text(json.dumps(recorded))
    return 7 if BEHAVIOUR == "wrong" else 0


sys.exit(main())
