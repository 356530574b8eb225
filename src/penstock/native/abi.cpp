// What the Python side asks before it trusts this library.
#include <cstring>

#include "draft.h"
#include "hyper.h"
#include "reader.h"
#include "router.h"
#include "step_bytes.h"
#include "steps.h"
#include "tiers.h"

namespace {

struct Named {
    const char* name;
    i64 value;
};

template <std::size_t N>
i64 find(const Named (&list)[N], const char* name) {
    for (const Named& each : list)
        if (std::strcmp(each.name, name) == 0) return each.value;
    return 0;
}

#define PS_SIZE(name) {#name, sizeof(name)}

constexpr Named STRUCTS[] = {
    PS_SIZE(ps_attention),      PS_SIZE(ps_attention_call), PS_SIZE(ps_attention_layer),
    PS_SIZE(ps_compressor),     PS_SIZE(ps_compressor_state), PS_SIZE(ps_division),
    PS_SIZE(ps_draft),          PS_SIZE(ps_expert),
    PS_SIZE(ps_head),           PS_SIZE(ps_hyper),          PS_SIZE(ps_index),
    PS_SIZE(ps_keys),           PS_SIZE(ps_outcome),        PS_SIZE(ps_output),
    PS_SIZE(ps_piece),          PS_SIZE(ps_placement),      PS_SIZE(ps_projections),
    PS_SIZE(ps_queries),        PS_SIZE(ps_reader_stats),   PS_SIZE(ps_ring),
    PS_SIZE(ps_router),         PS_SIZE(ps_sequence_state), PS_SIZE(ps_step_sizes),
    PS_SIZE(ps_turns),          PS_SIZE(ps_weight),
};

constexpr Named LIMITS[] = {{"streams", MAX_STREAMS}, {"projections", MAX_PROJECTIONS}};

}  // namespace

// Raised whenever the signature or meaning of an entry point changes; the Python side refuses any other number.
PS_EXPORT std::int32_t ps_abi_version() { return 7; }

// Bytes of a struct that entry points take, by its name here; 0: there is none of that name.
PS_EXPORT i64 ps_struct_size(const char* name) { return find(STRUCTS, name); }

// What kernels have room for: "streams" of a hyper-connection, "projections" of one input.  0: there is no such limit.
PS_EXPORT i64 ps_limit(const char* name) { return find(LIMITS, name); }
