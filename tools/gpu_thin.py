#!/usr/bin/env python3
"""Makes a copy of a shared library that holds CUDA code for one kind of GPU only, so that it compresses to little.

  tools/gpu_thin.py /usr/lib/libnccl.so.2 libnccl.so.2 --keep sm_90

Every address stays. A container of code with some for these GPUs is left with that alone, over its whole size: the rest is zero bytes.
One without any stays as it is. What only a linker reads (section __nv_relfatbin) becomes zero bytes behind its headers. What is
kept is compressed harder, where libzstd is here, and compared with the original.
"""
import argparse
import collections
import ctypes
import ctypes.util
import pathlib
import struct
import sys

CONTAINER = 0xBA55ED50  # u32 magic, u16 version, u16 header size, u64 size of the entries behind it
ELF, ZSTD = 2, 0x8000
LEVEL, WINDOW_LOG = 12, 23  # 8 MiB: what every decoder of zstd should know
COMPRESSION_LEVEL, COMPRESSION_WINDOW_LOG = 100, 101  # ZSTD_cParameter

# Where in the file, and of the fields of struct fatbinary entries what is needed here.
Entry = collections.namedtuple("Entry", "at kind header size compressed arch flags unpacked")


class Zstd:
    def __init__(self, library):
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self.calls = ctypes.CDLL(library)
        for name, result, words in (("createCCtx", pointer, []), ("CCtx_setParameter", size, [pointer, ctypes.c_int, ctypes.c_int]),
                                    ("compressBound", size, [size]), ("freeCCtx", size, [pointer]),
                                    ("compress2", size, [pointer, pointer, size, ctypes.c_char_p, size]),
                                    ("decompress", size, [pointer, size, ctypes.c_char_p, size]), ("isError", ctypes.c_uint, [size])):
            call = getattr(self.calls, "ZSTD_" + name)
            call.restype, call.argtypes = result, words
            setattr(self, name, call)

    def checked(self, count):
        if self.isError(count):
            raise ValueError("zstd refuses the data")
        return count

    def pack(self, data):
        context = self.createCCtx()
        self.checked(self.CCtx_setParameter(context, COMPRESSION_LEVEL, LEVEL))
        self.checked(self.CCtx_setParameter(context, COMPRESSION_WINDOW_LOG, WINDOW_LOG))
        room = ctypes.create_string_buffer(self.compressBound(len(data)))
        count = self.checked(self.compress2(context, room, len(room), data, len(data)))
        self.freeCCtx(context)
        return room.raw[:count]

    def unpack(self, data, size):
        room = ctypes.create_string_buffer(size)
        if self.checked(self.decompress(room, size, data, len(data))) != size:
            raise ValueError("zstd data of another size than its header says")
        return room.raw


def sections(image):
    """Name, offset and size of each."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit ELF file")
    table, = struct.unpack_from("<Q", image, 40)
    count, names = struct.unpack_from("<HH", image, 60)
    rows = [struct.unpack_from("<IIQQQQ", image, table + 64 * row) for row in range(count)]
    for name, _, _, _, offset, size in rows:
        start = rows[names][4] + name
        yield image[start:image.index(b"\0", start)].decode(), offset, size


def containers(image, offset, size):
    """Where each is, its header's size, and its entries."""
    at, end = offset, offset + size
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", image, at)
        if magic != CONTAINER:
            at += 8
            continue
        inner, last, rows = at + header, at + header + length, []
        while inner < last:
            kind, _, head, padded = struct.unpack_from("<HHIQ", image, inner)
            compressed, = struct.unpack_from("<I", image, inner + 16)
            arch, = struct.unpack_from("<I", image, inner + 28)
            flags, = struct.unpack_from("<Q", image, inner + 40)
            unpacked, = struct.unpack_from("<Q", image, inner + 56)
            rows.append(Entry(inner, kind, head, padded, compressed, arch, flags, unpacked))
            inner += head + padded
        if inner != last or last > end:
            raise ValueError(f"the code at {at:#x} does not end where its header says")
        yield at + header, last, rows
        at = last


def smaller(image, entry, zstd):
    """Header and code of an entry, as small as may be."""
    head = bytearray(image[entry.at:entry.at + entry.header])
    code = bytes(image[entry.at + entry.header:entry.at + entry.header + entry.size])
    if zstd and entry.flags & ZSTD and entry.compressed:
        plain = zstd.unpack(code[:entry.compressed], entry.unpacked)
        packed = zstd.pack(plain)
        if len(packed) < entry.compressed:
            if zstd.unpack(packed, entry.unpacked) != plain:
                raise ValueError("zstd does not give back what it was given")
            code = packed + bytes(-len(packed) % 8)
            struct.pack_into("<Q", head, 8, len(code))
            struct.pack_into("<I", head, 16, len(packed))
    return head, code


def thin(image, keep, zstd):
    """Changes `image`; returns how many entries are kept, and their bytes before and now."""
    kept, before, now = 0, 0, 0
    for name, offset, size in list(sections(image)):
        if name == "__nv_relfatbin":
            for _, _, rows in list(containers(image, offset, size)):
                for entry in rows:
                    image[entry.at + entry.header:entry.at + entry.header + entry.size] = bytes(entry.size)
        if name != ".nv_fatbin":
            continue
        for start, end, rows in list(containers(image, offset, size)):
            chosen = [entry for entry in rows if entry.kind == ELF and entry.arch == keep]
            pieces = [smaller(image, entry, zstd) for entry in chosen]
            if not pieces:
                continue
            kept, before, now = kept + len(pieces), before + sum(entry.size for entry in chosen), now + sum(len(code) for _, code in pieces)
            spare = end - start - sum(len(head) + len(code) for head, code in pieces)
            head, code = pieces[-1]
            struct.pack_into("<Q", head, 8, len(code) + spare)
            image[start:end] = b"".join(head + code for head, code in pieces) + bytes(spare)
    return kept, before, now


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--keep", required=True, metavar="sm_90", help="the GPUs whose code is kept")
    options = parser.parse_args()
    if not options.keep.startswith("sm_") or not options.keep[3:].isdigit():
        parser.error(f"--keep {options.keep}: sm_90 was expected, or another number")
    library = ctypes.util.find_library("zstd")
    if not library:
        print("gpu_thin: there is no libzstd: what is kept stays as large as it is", file=sys.stderr)
    image = bytearray(options.library.read_bytes())
    try:
        kept, before, now = thin(image, int(options.keep[3:]), Zstd(library) if library else None)
    except (ValueError, struct.error) as error:
        sys.exit(f"gpu_thin: {options.library}: {error}")
    if not kept:
        sys.exit(f"gpu_thin: {options.library} has no code for {options.keep}; nothing was written")
    options.out.write_bytes(image)
    print(f"gpu_thin: {kept} pieces of code for {options.keep} kept, {before} bytes as {now}", file=sys.stderr)


if __name__ == "__main__":
    main()
