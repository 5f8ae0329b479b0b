"""Tokenizers in llama2.c's binary format, such as tok512.bin: pieces with scores, read as a byte-pair vocabulary.

A file is the length of its longest piece, then for each id a score, a length and that many bytes. Ids 0, 1 and 2 are
unknown, beginning and end of text; the next 256 are single bytes; the rest are pieces with real spaces in them, the
likeliest first to be merged having the highest score. A text is read as if it began with a space.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from edlm.errors import UserError

if TYPE_CHECKING:
    import tokenizers

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NUM_SPECIAL = 3
LARGEST_PIECE = 1 << 16


def read_llama2c_tokenizer(path: Path) -> "tokenizers.Tokenizer":
    """The tokenizer in a tok*.bin file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces, scores = _read_pieces(path)
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    inner = Tokenizer(
        models.BPE(vocabulary, _merges(pieces, scores), unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    )
    inner.normalizer = normalizers.Prepend(" ")
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    inner.add_special_tokens([AddedToken(mark, normalized=False) for mark in (UNKNOWN, BEGIN, END)])
    return inner


def _read_pieces(path: Path) -> tuple[list[str], list[float]]:
    data = path.read_bytes()
    pieces: list[bytes] = []
    scores, offset = [], 4
    while offset < len(data):
        if offset + 8 > len(data):
            raise _damaged(path, len(pieces))
        score, size = struct.unpack_from("<fi", data, offset)
        offset += 8 + size
        if not 0 < size < LARGEST_PIECE or offset > len(data):
            raise _damaged(path, len(pieces))
        pieces.append(data[offset - size : offset])
        scores.append(score)
    if len(pieces) < NUM_SPECIAL + len(BYTES):
        raise _damaged(path, len(pieces))
    try:
        spelled = [piece.decode("utf-8") for piece in pieces]
    except UnicodeDecodeError as error:
        raise _damaged(path, len(pieces)) from error
    first = [UNKNOWN, BEGIN, END, *BYTES]
    if spelled[NUM_SPECIAL : len(first)] != BYTES:
        raise UserError(f"{path} does not have the 256 bytes at ids 3 to 258; it is no tokenizer of llama2.c")
    return first + spelled[len(first) :], scores


def _damaged(path: Path, num_pieces: int) -> UserError:
    return UserError(f"{path} ends or breaks off after {num_pieces} pieces; it is no whole tokenizer of llama2.c")


def _merges(pieces: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the piece with the highest score first.

    llama2.c merges, again and again, the neighbours whose joint piece has the highest score, the leftmost of them; a
    ranked list of pairs does the same.
    """
    known = set(pieces[NUM_SPECIAL + len(BYTES) :])
    order = sorted(range(NUM_SPECIAL + len(BYTES), len(pieces)), key=lambda id: -scores[id])
    return [
        (piece[:cut], piece[cut:])
        for piece in (pieces[id] for id in order)
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
