// Where 256 weights lie that a format calls a block.
#pragma once

#include "../isa/isa.h"

namespace {

// Block `block` of row `row`; Format::BYTES are those of a whole block, of which the last of a row may have a part.
template <class Format>
PS_INLINE const u8* block_address(const ps_weight& w, i64 row, i64 block) {
    return static_cast<const u8*>(w.data) + row * (w.columns / GROUP * Format::BYTES / (BLOCK / GROUP)) +
           block * Format::BYTES;
}

}  // namespace
