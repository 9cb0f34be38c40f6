"""Read packed models: ONNX models whose tensors are compressed without loss.

    40 bytes    header: magic, version, place and CRC-32 of the index, CRC-32 of the header
    blocks      the tensors, then the graph, one after another without a gap
    index       deflated JSON: place, CRC-32 and SHA-256 of each block; where each tensor is used

A tensor is a sequence of chunks (`chunks.py`). `onward.compress.pack` writes such files.
"""
