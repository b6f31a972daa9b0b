"""The host: CPU, memory, kernel, what NCCL would read from files and the environment. No secrets, no names."""

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CRED|AUTH|API|KEY", re.IGNORECASE)
# A long run of letters and digits in one piece, or a password inside an address.
_SECRET_VALUE = re.compile(r"^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+=_-]{32,}$|://[^/@\s]+:[^/@\s]+@")
MASKED = "(masked)"
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECT = 0x4 | 0x8  # request redirect, completion redirect: peer traffic goes up to the root complex
_PCI_BRIDGE_CLASS = "0x0604"


def hostname_hash() -> str:
    """Return eight hex digits of the host's name: enough to tell machines apart, too few to name one."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def os_name() -> str:
    """Return the distribution's own name, or the kernel's."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME") or platform.system()
    except OSError:
        return platform.system()


def cpu_model() -> str:
    """Return the CPU's name; ARM kernels print none, so the architecture stands in."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def cpu_vendor() -> Literal["intel", "amd", "other"]:
    """Return whose CPU this is: NCCL's default for peer access depends on it."""
    match = re.search(r"^vendor_id\s*:\s*(\S+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    names: dict[str, Literal["intel", "amd"]] = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
    return names.get(match.group(1), "other") if match else "other"


def is_virtual_machine() -> bool:
    """Tell whether the kernel knows that it runs under a hypervisor."""
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", _read(Path("/proc/cpuinfo")), re.MULTILINE))


def shm_bytes(path: Path = Path("/dev/shm")) -> tuple[int, int] | None:
    """Return size and free bytes of the shared-memory file system, None without one."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.total, usage.free


def inherited_nccl(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the NCCL_* variables of the environment, and nothing else of it; what looks like a secret is masked."""
    variables = os.environ if environ is None else environ
    return {name: _mask(name, variables[name]) for name in sorted(variables) if name.startswith("NCCL_")}


def nccl_conf_files() -> list[Path]:
    """Return the files from which NCCL takes settings by itself: NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf."""
    named = os.environ.get("NCCL_CONF_FILE")
    first = Path(named) if named else Path("~/.nccl.conf").expanduser()
    return [path for path in (first, Path("/etc/nccl.conf")) if path.is_file()]


def without_home(path: Path) -> str:
    """Write a path with ~ for the home folder, which has the user's name in it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


def num_iommu_groups(folder: Path = Path("/sys/kernel/iommu_groups")) -> int | None:
    """Return the number of IOMMU groups: 0 where the IOMMU is off, None where the kernel does not tell."""
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return None


def iommu_options() -> list[str]:
    """Return the kernel's IOMMU options from its command line."""
    return [word for word in _read(Path("/proc/cmdline")).split() if re.match(r"(intel_|amd_)?iommu\b|pci=", word)]


def acs_redirecting(devices: Path = Path("/sys/bus/pci/devices")) -> list[str] | None:
    """Return the PCI bridges whose ACS sends peer traffic up to the root complex.

    None where it cannot be seen: reading the extended configuration space needs root.
    """
    seen, redirecting = False, []
    for device in sorted(devices.glob("*")) if devices.is_dir() else []:
        if not _read(device / "class").startswith(_PCI_BRIDGE_CLASS):
            continue
        try:
            config = (device / "config").read_bytes()
        except OSError:
            continue
        control = _acs_control(config)
        seen = seen or len(config) > 256
        if control is not None and control & _ACS_REDIRECT:
            redirecting.append(device.name)
    return redirecting if seen else None


def _acs_control(config: bytes) -> int | None:
    """Find the ACS control register in a configuration space: a list of capabilities from byte 0x100 on."""
    offset = 0x100
    for _ in range(64):  # the list is short; a broken one must not loop
        if offset < 0x100 or offset + 8 > len(config):
            return None
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return None


def _mask(name: str, value: str) -> str:
    return MASKED if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
