"""Frames as bytes, and damaged frames; the format is in native/wire's frame.h."""

from __future__ import annotations

import random
import struct

HEADER = struct.Struct("<4sBBHQIHHQ")
ID_AT, METADATA_AT, METHOD_AT, PAYLOAD_AT = 8, 16, 20, 24
METHODS = (0, 1, 2, 3, 16, 17, 18, 0xFFFF)
NUMBERS = (0, 1, 2, 31, 33, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def frames_of(said: bytes) -> tuple[list[bytes], bytes]:
    """The complete frames, and the received part of the next one."""
    frames = []
    while len(said) >= HEADER.size:
        _, _, _, _, _, metadata, _, _, payload = HEADER.unpack_from(said)
        end = HEADER.size + metadata + payload
        if len(said) < end:
            break
        frames.append(said[:end])
        said = said[end:]
    return frames, said


def answering(frame: bytes, to: bytes) -> bytes:
    """The frame with the call id of the answer `to`."""
    return frame[:ID_AT] + to[ID_AT:METADATA_AT] + frame[METADATA_AT:]


def damaged_frame(frame: bytes, chance: random.Random) -> bytes:
    """A frame with a changed bit or byte, a piece of another frame, or a wrong number."""
    at = chance.randrange(len(frame))
    match chance.randrange(8):
        case 0:
            return frame[:at] + bytes([frame[at] ^ 1 << chance.randrange(8)]) + frame[at + 1 :]
        case 1:
            return frame[:at] + chance.randbytes(chance.randrange(1, 9)) + frame[at + 1 :]
        case 2:
            return frame[:at] + chance.randbytes(chance.randrange(100)) + frame[at:]
        case 3:
            return frame[:at]
        case 4:
            return frame[:at] + frame[at + chance.randrange(50) :]
        case 5:
            where, kind = chance.choice([(METADATA_AT, "<I"), (PAYLOAD_AT, "<Q")])
            number = chance.choice(NUMBERS) & (2 ** (8 * struct.calcsize(kind)) - 1)
            return (
                frame[:where] + struct.pack(kind, number) + frame[where + struct.calcsize(kind) :]
            )
        case 6:
            method = struct.pack("<H", chance.choice(METHODS))
            return frame[:METHOD_AT] + method + frame[METHOD_AT + 2 :]
        case _:
            return frame[:5] + bytes([chance.randrange(17)]) + frame[6:]


def damaged(frames: list[bytes], chance: random.Random) -> bytes:
    """These frames with one to four defects, mostly after the greeting."""
    frames = list(frames)
    for _ in range(chance.randrange(1, 5)):
        first = 0 if len(frames) == 1 or chance.random() < 0.05 else 1
        at = chance.randrange(first, len(frames))
        match chance.randrange(8):
            case 0:
                frames.insert(chance.randrange(first, len(frames)), frames[at])
            case 1:
                other = chance.randrange(first, len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            case 2 if len(frames) > 2:
                del frames[at]
            case 3:
                frames = frames[: at + 1]
            case _:
                frames[at] = damaged_frame(frames[at], chance) or b"T"
    return b"".join(frames)
