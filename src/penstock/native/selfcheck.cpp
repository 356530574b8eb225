// Computes the same with every instruction set this processor has, and compares bit by bit with the plain versions.
//
//   cmake --build build/native --target native_selfcheck && build/native/native_selfcheck
//
// Prints a digest of every result.  What the C library computes (exp and log1p of the router, cos and sin of positions)
// is not in it, so digests are the same for all compilers and all processors.  Needs no Python: built for another
// processor, it runs there or under an emulator.
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "encode.h"
#include "inputs.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "threads.h"

namespace {

// Of any number of results, in order (FNV-1a).
struct Digest {
    std::uint64_t value = 0xcbf29ce484222325;

    void add(const std::vector<float>& results) {
        for (float result : results) {
            const auto word = result == result ? bits<std::uint32_t>(result) : 0x7fc00000u;  // there are many NaNs
            for (int shift = 0; shift < 32; shift += 8) value = (value ^ (word >> shift & 255)) * 0x100000001b3;
        }
    }
};

// The library's distributions give other numbers with another library.
float number(std::mt19937& random) { return static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-30f; }

std::vector<float> numbers(i64 count, std::mt19937& random) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = number(random);
    return out;
}

struct Format {
    const char* name;
    i64 type, block, bytes;
    std::vector<int> halves;  // where blocks keep float16 scales
};

const Format FORMATS[] = {
    {"F32", W_F32, 1, 4, {}},         {"F16", W_F16, 1, 2, {}},
    {"BF16", W_BF16, 1, 2, {}},       {"FP8", W_FP8, 1, 1, {}},
    {"Q8_0", W_Q8_0, 32, 34, {0}},    {"MXFP4", W_MXFP4, 32, 17, {}},
    {"FP4", W_FP4, 32, 16, {}},       {"Q4_K", W_Q4_K, 256, 144, {0, 2}},
    {"Q2_K", W_Q2_K, 256, 84, {80, 82}}, {"IQ2_XXS", W_IQ2_XXS, 256, 66, {0}},
};

// 0: zeros, 1: all bits set, else random; scales are ordinary numbers of either sign.
std::vector<u8> weights(const Format& f, i64 rows, i64 columns, int pattern, std::mt19937& random) {
    std::vector<u8> out(static_cast<std::size_t>(rows * columns / f.block * f.bytes));
    for (u8& byte : out) byte = pattern == 0 ? 0 : pattern == 1 ? 255 : static_cast<u8>(random());
    for (std::size_t at = 0; at < out.size(); at += static_cast<std::size_t>(f.bytes)) {
        u8* block = &out[at];
        for (int half : f.halves) block[half + 1] = static_cast<u8>((random() & 0x83) | 0x24);
        if (f.type == W_F32 || f.type == W_F16 || f.type == W_BF16) block[f.bytes - 1] &= 0xbf;  // no infinity, no NaN
        if (f.type == W_FP8 && (block[0] & 127) == 127) block[0] = 0x7e;
        if (f.type == W_MXFP4) block[0] = static_cast<u8>(100 + random() % 40);
    }
    return out;
}

std::vector<float> multiply(const Kernels& kernels, const ps_weight& w, const std::vector<float>& x, i64 rows) {
    const i64 blocks = blocks_of(w.columns);
    std::vector<i16> values[ORDERS];
    for (auto& order : values) order.resize(static_cast<std::size_t>(rows * blocks * BLOCK));
    std::vector<float> scales(static_cast<std::size_t>(rows * blocks)), sums(scales.size() * SUMS);
    for (i64 r = 0; r < rows; r++) {
        i16* row[ORDERS];
        for (int order = 0; order < ORDERS; order++) row[order] = &values[order][static_cast<std::size_t>(r * BLOCK)];
        kernels.quantise(&x[static_cast<std::size_t>(r * w.columns)], w.columns, row, rows * BLOCK,
                         &scales[static_cast<std::size_t>(r * blocks)],
                         &sums[static_cast<std::size_t>(r * blocks * SUMS)]);
    }
    const Inputs in = {x.data(),      w.columns,   w.columns, blocks, rows * BLOCK,
                       {values[NATURAL].data(), values[SPLIT].data(), values[PLANES].data()},
                       scales.data(), sums.data(), nullptr,   rows};
    std::vector<float> out(static_cast<std::size_t>(rows * w.rows));
    Scratch<For::PIECE> scratch(kernels.scratch_bytes);
    kernels.multiply(w, 0, w.rows, in, out.data(), w.rows, scratch.memory());
    return out;
}

// Products with one format: few and many inputs, rows that end within a block, extreme weights.
Digest products(const Kernels& kernels, const Format& f) {
    std::mt19937 random(1);
    Digest digest;
    const i64 out_rows = 21;
    for (i64 columns : {f.block == 1 ? i64{301} : f.block, f.block == 256 ? i64{1024} : i64{1120}})
        for (int pattern = 0; pattern < 5; pattern++) {
            const std::vector<u8> data = weights(f, out_rows, columns, pattern, random);
            std::vector<u8> scale(static_cast<std::size_t>(out_rows * (columns / 32 + 1)));
            for (u8& byte : scale) byte = static_cast<u8>(pattern == 4 ? random() % 240 : 110 + random() % 30);
            const ps_weight w = {data.data(), scale.data(), f.type, out_rows, columns, 0, nullptr, 0, nullptr};
            for (i64 rows : {1, 2, 3, 4, 7, 64}) {
                std::vector<float> x = numbers(rows * columns, random);
                if (pattern == 3) x.assign(x.size(), 1.0f);
                digest.add(multiply(kernels, w, x, rows));
            }
        }
    return digest;
}

// The steps of a layer.  Sizes that are no multiple of eight, and some that are.

Digest norms(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    for (i64 dim : {5, 64, 301}) {
        const auto x = numbers(7 * dim, random), weight = numbers(dim, random);
        std::vector<float> out(x.size());
        k.norm_rows(x.data(), weight.data(), 0, 7, dim, 1e-6f, out.data());
        digest.add(out);
        k.norm_rows(x.data(), nullptr, 0, 7, dim, 1e-6f, out.data());
        digest.add(out);
    }
    return digest;
}

Digest hyper_connections(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    for (i64 n : {2, 4}) {
        const i64 hidden = 301, rows = 5, width = (2 + n) * n;
        const auto base = numbers(width, random), scale = numbers(width, random), norm = numbers(hidden, random);
        const auto y = numbers(rows * hidden, random);
        std::vector<float> streams = numbers(rows * n * hidden, random), x(y.size()), mix = numbers(rows * width, random);
        const ps_hyper h{nullptr, base.data(), scale.data(), norm.data(), n, hidden, 20, 1e-6f, 1e-6f};
        const ps_head head{nullptr, base.data(), scale.data(), norm.data(), n, hidden, 1e-6f, 1e-6f};
        for (bool normed : {false, true}) {
            k.enter_rows(h, normed, streams.data(), 0, rows, x.data(), mix.data());
            digest.add(x);
            digest.add(mix);
            k.leave_rows(y.data(), streams.data(), mix.data(), 0, rows, n, hidden);
            digest.add(streams);
        }
        k.head_rows(head, mix.data(), streams.data(), 0, rows, x.data());
        digest.add(x);
    }
    return digest;
}

// 16-bit rows are digested two numbers at a time.
Digest queries_and_keys(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    const i64 dim = 64, half = 12, heads = 3, rows = 9, width = 80;
    const auto projected = numbers(rows * width, random), norm = numbers(dim, random);
    const auto cos = numbers(rows * half, random), sin = numbers(rows * half, random);
    std::vector<float> q = numbers(rows * heads * dim, random), low(rows * dim), work(padded(dim));
    for (i64 low_precision : {0, 1}) {
        const ps_queries queries{nullptr, nullptr, norm.data(), 8, dim, heads, dim, 0, 0, half, low_precision, 1e-6f};
        k.low_rank_rows(queries, projected.data(), width, 0, rows, low.data());
        k.finish_heads(q.data(), cos.data(), sin.data(), 0, rows * heads, heads, dim, half, 1e-6f);
        digest.add(low);
        digest.add(q);
        k.finish_index_heads(q.data(), cos.data(), sin.data(), 0, rows * heads, heads, dim, half, low_precision);
        digest.add(q);
        const ps_keys keys{norm.data(), 3, dim, half, low_precision, 1e-6f};
        for (i64 kind : {F32, F16, BF16}) {
            std::vector<float> ring(static_cast<std::size_t>(16 * dim));
            const ps_ring into{ring.data(), 16, dim, kind};
            k.key_rows(keys, projected.data(), width, cos.data(), sin.data(), 0, rows, into, nullptr, 11, work.data());
            digest.add(ring);
        }
    }
    return digest;
}

Digest compressors(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    const i64 dim = 40, ratio = 4, count = 6 * ratio;
    for (i64 width : {dim, 2 * dim}) {
        const auto ape = numbers(ratio * width, random), norm = numbers(dim, random);
        const auto projected = numbers(count * 2 * width, random);
        auto frontier = numbers(16 * 2 * width, random);
        const ps_ring ring{frontier.data(), 16, 2 * width, F32};
        const ps_compressor c{ape.data(), norm.data(), nullptr, 0, width, width, dim, 0, ratio, 0, 1e-6f};
        std::vector<float> rows(static_cast<std::size_t>((2 + count / ratio) * dim));
        std::vector<float> work(static_cast<std::size_t>(compress_piece_floats(dim, 0, ratio)));
        const CompressTask task{c, projected.data(), 2 * width, 2 * ratio, ring, rows.data(), F32};
        for (i64 window = 1; window < 2 + count / ratio; window++) k.compress_window(task, window, work.data());
        digest.add(rows);
    }
    return digest;
}

Digest attentions(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    for (i64 dim : {40, 68}) {
        const i64 heads = 6, tokens = 3, position = 150, half = 8, rows = 50;
        const auto q = numbers(tokens * heads * dim, random), sinks = numbers(heads, random);
        const auto cos = numbers(tokens * half, random), sin = numbers(tokens * half, random);
        auto raw = numbers(128 * dim, random);
        const auto compressed = numbers(rows * dim, random), gates = numbers(tokens * heads, random);
        std::vector<float> halves(compressed.size());  // as float16, in half of it
        for (i64 row = 0; row < rows; row++)
            narrow(&compressed[static_cast<std::size_t>(row * dim)], dim, F16, row_at(halves.data(), row, dim, F16));
        const ps_ring ring{raw.data(), 128, dim, F32};
        const ps_attention a{sinks.data(), heads, dim, 100, 4, half};
        std::vector<float> out(q.size()), work(static_cast<std::size_t>(attention_piece_floats(heads, dim)));
        std::vector<float> block(static_cast<std::size_t>(rows * padded(dim)));
        std::vector<float> hits(static_cast<std::size_t>(rows * padded(heads))), scores(static_cast<std::size_t>(rows));
        for (i64 kind : {F32, F16}) {
            const void* at = kind == F32 ? compressed.data() : halves.data();
            const ps_attention_call call{q.data(), tokens, position, &ring, nullptr, position, at, dim, kind, rows,
                                         nullptr, nullptr, 0, cos.data(), sin.data(), out.data()};
            const ps_index index{q.data(), gates.data(), heads, tokens, heads, dim, at, dim, kind, rows,
                                 nullptr, position, 4, 10, 10, nullptr};
            for (i64 token = 0; token < tokens; token++) {
                k.attend_token(a, call, token, 0, heads, work.data());
                k.score_rows(index, token, 0, rows, block.data(), hits.data(), scores.data());
                digest.add(scores);
            }
            digest.add(out);
        }
    }
    return digest;
}

Digest activations(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    std::vector<float> gate = numbers(1003, random), up = numbers(1003, random), out(1003);
    for (float& x : gate) x *= 60;
    k.swiglu(gate.data(), up.data(), 1003, 100, out.data());
    digest.add(out);
    float top = 0;
    const i64 best = k.logits_top(gate.data(), 1003, &top);
    const double sum = k.weigh_logits(gate.data(), 1003, top, 0.5f, out.data());
    digest.add(out);
    digest.add({static_cast<float>(best), top, static_cast<float>(sum)});
    return digest;
}

Digest decoded(const StepKernels& k, std::mt19937& random) {
    Digest digest;
    for (i64 columns : {9, 301})
        for (i64 rows : {1, 2, 3, 7}) {
            const auto x = numbers(rows * columns, random), w = numbers(11 * columns, random);
            std::vector<float> out(static_cast<std::size_t>(rows * 11));
            const Inputs in = {x.data(), columns, columns, 0, 0, {}, nullptr, nullptr, nullptr, rows};
            k.multiply_floats(in, w.data(), 11, out.data(), 11);
            digest.add(out);
        }
    return digest;
}

struct Step {
    const char* name;
    Digest (*digest)(const StepKernels& kernels, std::mt19937& random);
};

const Step STEPS[] = {
    {"norm", norms},
    {"hyper", hyper_connections},
    {"query/key", queries_and_keys},
    {"compress", compressors},
    {"attention", attentions},
    {"activation", activations},
    {"decoded", decoded},
};

struct Encoded {
    const char* name;
    i64 type;
};

const Encoded ENCODED[] = {
    {"to F16", E_F16},   {"to BF16", E_BF16},     {"to Q8_0", E_Q8_0},     {"to MXFP4", E_MXFP4}, {"to Q4_0", E_Q4_0},
    {"to Q5_0", E_Q5_0}, {"to Q5_1", E_Q5_1},     {"to Q2_K", E_Q2_K},     {"to Q3_K", E_Q3_K},   {"to Q4_K", E_Q4_K},
    {"to Q5_K", E_Q5_K}, {"to Q6_K", E_Q6_K},     {"to IQ2_XXS", E_IQ2_XXS}, {"to IQ4_NL", E_IQ4_NL},
};

// A row of weights as bytes of a type.
Digest encoded(const Encoders& encoders, i64 type) {
    std::mt19937 random(2);
    const i64 columns = 8192;
    std::vector<float> x = numbers(columns, random), importance = numbers(columns, random);
    for (float& each : importance) each = each * each + 0x1p-10f;
    std::vector<u8> out(static_cast<std::size_t>(columns) * 2);
    encoders.encode(type, x.data(), importance.data(), columns, out.data());
    Digest digest;
    for (u8 byte : out) digest.value = (digest.value ^ byte) * 0x100000001b3;
    return digest;
}

// Every digest of one instruction set, by name.
std::vector<std::pair<const char*, Digest>> digests(const Kernels& kernels) {
    std::vector<std::pair<const char*, Digest>> out;
    for (const Format& format : FORMATS) out.emplace_back(format.name, products(kernels, format));
    for (const Encoded& each : ENCODED) out.emplace_back(each.name, encoded(encoders_of(kernels), each.type));
    for (const Step& step : STEPS) {
        std::mt19937 random(1);
        out.emplace_back(step.name, step.digest(kernels.steps, random));
    }
    return out;
}

// Every piece is computed once, however many threads share them.
int wrong_pieces() {
    int wrong = 0;
    std::vector<std::int32_t> counts(1000);
    for (int round = 0; round < 100; round++) ps_threads_check(1000, 8, counts.data());
    for (std::int32_t count : counts) wrong += count != 100;
    return wrong;
}

}  // namespace

int main() {
    int wrong = wrong_pieces();
    if (wrong) std::printf("threads: %d of 1000 pieces were not computed once a call\n", wrong);
    const auto plain = digests(scalar_kernels());
    for (const char* name : {"scalar", "avx2", "avx512_vnni", "avx512", "neon", "neon_dot"})
        if (const Kernels* kernels = kernels_named(name)) {
            const auto found = digests(*kernels);
            for (std::size_t i = 0; i < found.size(); i++) {
                const bool same = found[i].second.value == plain[i].second.value;
                std::printf("%-8s %-11s %016llx %s\n", name, found[i].first,
                            static_cast<unsigned long long>(found[i].second.value), same ? "same bits" : "DIFFERS");
                wrong += !same;
            }
        }
    return wrong != 0;
}
