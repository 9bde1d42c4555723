"""Writes a model of random weights that llama.cpp loads.

Its vocabulary is ASCII, a token for each character, so that a text has as many tokens as letters.
"""

import gguf
import numpy

CONTEXT = 1 << 15
HEADS = 4
CHARACTERS = ["\n", *map(chr, range(33, 127))]
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def tensors(blocks, width):
    """The names and shapes of the weights."""
    vocabulary = len(CHARACTERS) + 4
    yield "token_embd.weight", (vocabulary, width)
    yield "output_norm.weight", (width,)
    yield "output.weight", (vocabulary, width)
    for block in range(blocks):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{block}.{name}.weight", (width,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{block}.{name}.weight", (width, width)
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{block}.{name}.weight", (2 * width, width)
        yield f"blk.{block}.ffn_down.weight", (width, 2 * width)


def write(path, blocks=2, width=64, zeros=False):
    """Writes the model into `path`.

    A model of `zeros` is a sparse file: slow to load, and small on the disk.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "\u2581", *CHARACTERS])
    writer.add_token_scores([0.0] * (len(CHARACTERS) + 4))
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.NORMAL] * (len(CHARACTERS) + 1)
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)

    random = numpy.random.default_rng(1)
    size = 0
    for name, shape in tensors(blocks, width):
        if zeros:
            bytes_of_it = 4 * int(numpy.prod(shape))
            size += bytes_of_it + -bytes_of_it % gguf.GGUF_DEFAULT_ALIGNMENT
            writer.add_tensor_info(name, shape, numpy.dtype("float32"), bytes_of_it)
        else:
            writer.add_tensor(name, random.standard_normal(shape, dtype="float32") / width**0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if zeros:
        writer.write_ti_data_to_file()
        writer.close()
        with open(path, "r+b") as file:
            end = file.seek(0, 2)
            file.truncate(end + -end % gguf.GGUF_DEFAULT_ALIGNMENT + size)
    else:
        writer.write_tensors_to_file()
        writer.close()
