// Routed experts, and the shared one along with them.
//
// Two rounds of pieces.  First gate and up: every piece is some rows of one expert's two matrices, for all inputs that
// go to that expert; whoever finishes an expert's last piece quantises what came out.  Then down: every piece is a
// range of output columns, for all experts in their order, so that sums are made in that order without being stored.
#include <algorithm>
#include <atomic>

#include "inputs.h"
#include "threads.h"

PS_EXPORT void ps_swiglu(const float* gate, const float* up, i64 n, float limit, float* out);

namespace {

constexpr i64 CHUNK = 512;        // input rows at a time: bounds the memory a call takes
constexpr i64 PART = 128;         // inputs of one expert in a piece at a time: bounds the memory a piece takes
constexpr i64 WIDEST = 16;        // panels in a piece, at most.  Large ones: weights are streams, slow to begin

// What comes out of gate and up, for experts of one width: [pairs, width].
struct Inner {
    float* values;
    i64 width;
    const Quantised* quantised;
    i64 first;  // number of the first pair in it
};

struct Job {
    const ps_expert* expert;
    const Inner* inner;
    float limit;
    i64 first, rows;        // its pairs of (input row, routing weight): [first, first + rows)
    i64 step, pieces;       // first round
    std::atomic<i64> left;  // pieces of the first round that are not done
};

// Everything about one chunk of input rows.
struct Round {
    Job* jobs;
    i64 count;
    const i64* input_row;  // of every pair
    const i64* part;       // of every pair: its number among the parts, which are wanted in place of a sum (or null)
    const float* weight;   // of every pair
    const float* x;
    float* out;  // [rows, hidden], or the parts
    bool more;
    i64 rows, hidden;
    const Quantised* quantised;  // x
    void* memory;
};

i64 bytes_of(const ps_weight& weight) { return row_bytes(weight.type, weight.columns); }

void gate_and_up(const Round& round, Job& job, i64 piece, void* scratch, float* gate, float* up) {
    const Inner& inner = *job.inner;
    const i64 begin = piece * job.step, n = std::min(job.step, inner.width - begin);
    for (i64 from = 0; from < job.rows; from += PART) {
        const i64 rows = std::min(PART, job.rows - from), pair = job.first + from;
        const Inputs in =
            round.quantised->inputs(round.memory, 0, round.x, round.hidden, round.input_row + pair, rows);
        kernels().multiply(*job.expert->gate, begin, begin + n, in, gate, n, scratch);
        kernels().multiply(*job.expert->up, begin, begin + n, in, up, n, scratch);
        for (i64 i = 0; i < rows; i++)
            ps_swiglu(gate + i * n, up + i * n, n, job.limit,
                      inner.values + (pair - inner.first + i) * inner.width + begin);
    }
    if (job.left.fetch_sub(1, std::memory_order_acq_rel) != 1 || !inner.quantised->needed()) return;
    for (i64 i = job.first - inner.first; i < job.first - inner.first + job.rows; i++)
        inner.quantised->fill(round.memory, i, inner.values + i * inner.width);
}

void down(const Round& round, i64 begin, i64 n, void* scratch, float* part) {
    if (!round.more && !round.part)
        for (i64 r = 0; r < round.rows; r++) std::fill_n(round.out + r * round.hidden + begin, n, 0.0f);
    for (Job* job = round.jobs; job < round.jobs + round.count; job++)
        for (i64 from = 0; from < job->rows; from += PART) {
            const Inner& inner = *job->inner;
            const i64 rows = std::min(PART, job->rows - from), pair = job->first + from, row = pair - inner.first;
            const Inputs in = inner.quantised->inputs(round.memory, row, inner.values + row * inner.width, inner.width,
                                                      nullptr, rows);
            kernels().multiply(*job->expert->down, begin, begin + n, in, part, n, scratch);
            for (i64 i = 0; i < rows; i++) {
                if (round.part) {
                    std::copy_n(part + i * n, n, round.out + round.part[pair + i] * round.hidden + begin);
                    continue;
                }
                float* out = round.out + round.input_row[pair + i] * round.hidden + begin;
                kernels().add_scaled(round.weight[pair + i], part + i * n, n, out);
            }
        }
}

void run(const Round& round, i64 threads) {
    const i64 panel = kernels().panel;
    i64 time = 0, pieces = 0;
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) {
        const i64 bytes = bytes_of(*job->expert->gate) + bytes_of(*job->expert->up);
        const i64 row_time = time_of(bytes, 2 * round.hidden * job->rows);
        job->step = std::clamp<i64>(job->inner->width / (4 * threads) / panel, 1, job->rows > FEW ? 8 : WIDEST) * panel;
        job->pieces = (job->inner->width + job->step - 1) / job->step;
        job->left.store(job->pieces, std::memory_order_relaxed);
        pieces += job->pieces;
        time += job->inner->width * row_time;
    }
    const i64 room = PART * WIDEST * panel;  // floats
    threads = threads_for(time, threads);
    // The last expert first: the shared one has the most inputs to quantise at the end.
    parallel_for(pieces, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(kernels().scratch_bytes + 2 * room * static_cast<i64>(sizeof(float)));
        float* gate = at<float>(scratch.memory(), kernels().scratch_bytes);
        Job* job = round.jobs + round.count - 1;
        for (; piece >= job->pieces; job--) piece -= job->pieces;
        gate_and_up(round, *job, piece, scratch.memory(), gate, gate + room);
    });
    const i64 step = std::clamp<i64>(round.hidden / (8 * threads) / panel, 1, WIDEST) * panel;
    parallel_for((round.hidden + step - 1) / step, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(kernels().scratch_bytes + room * static_cast<i64>(sizeof(float)));
        const i64 begin = piece * step;
        down(round, begin, std::min(step, round.hidden - begin), scratch.memory(),
             at<float>(scratch.memory(), kernels().scratch_bytes));
    });
}

// What both entry points are given.  weights is null where parts are wanted.
struct Call {
    const ps_expert* const* experts;
    const i64* expert_ids;
    i64 count;
    const i64* ids;
    const float* weights;
    i64 slots;
    float limit;
    const ps_expert* shared;
    float shared_limit;
    const float* x;
    i64 rows;
    float* out;
    bool more;
};

void run(const Call& call, i64 threads) {
    const i64 count = call.count, slots = call.slots;
    const ps_expert* shared = call.shared;
    if (call.rows == 0 || (count == 0 && !shared)) return;
    const i64 jobs = count + (shared ? 1 : 0);
    const i64 hidden = (shared ? shared : call.experts[0])->gate->columns;
    const i64 width = count ? call.experts[0]->gate->rows : 0, shared_width = shared ? shared->gate->rows : 0;
    const bool parts = !call.weights;
    auto number_of = [&](i64 id) {  // or -1
        const i64* found = std::lower_bound(call.expert_ids, call.expert_ids + count, id);
        return found < call.expert_ids + count && *found == id ? found - call.expert_ids : i64{-1};
    };
    for (i64 from = 0; from < call.rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, call.rows - from), shared_rows = shared ? chunk : 0;
        const i64* id = call.ids + from * slots;
        i64 routed = 0;
        Orders outer, inner, shared_inner;
        {
            Scratch<For::PIECE> counting(count * static_cast<i64>(sizeof(i64)));
            i64* inputs = at<i64>(counting.memory(), 0);  // of every expert
            std::fill_n(inputs, count, 0);
            for (i64 i = 0; i < chunk * slots; i++)
                if (const i64 e = number_of(id[i]); e >= 0) {
                    inputs[e]++;
                    routed++;
                }
            auto add = [&](const ps_expert& expert, i64 n, Orders& down) {
                outer.add(*expert.gate, n);
                outer.add(*expert.up, n);
                down.add(*expert.down, n);
            };
            for (i64 e = 0; e < count; e++) add(*call.experts[e], inputs[e], inner);
            if (shared) add(*shared, chunk, shared_inner);
        }
        Layout layout;
        const i64 jobs_at = layout.add<Job>(jobs), row_at = layout.add<i64>(routed + shared_rows);
        const i64 part_at = layout.add<i64>(parts ? routed + shared_rows : 0);
        const i64 weight_at = layout.add<float>(routed + shared_rows);
        const i64 inner_at = layout.add<float>(routed * width);
        const i64 shared_at = layout.add<float>(shared_rows * shared_width);
        const Quantised x_quantised(layout, chunk, hidden, outer);
        const Quantised inner_quantised(layout, routed, width, inner);
        const Quantised shared_quantised(layout, shared_rows, shared_width, shared_inner);
        Scratch<For::CALL> scratch(layout.bytes());
        void* memory = scratch.memory();
        const Inner routed_inner = {at<float>(memory, inner_at), width, &inner_quantised, 0};
        const Inner last_inner = {at<float>(memory, shared_at), shared_width, &shared_quantised, routed};
        Job* job = at<Job>(memory, jobs_at);
        i64 *input_row = at<i64>(memory, row_at), *part = parts ? at<i64>(memory, part_at) : nullptr;
        float* weight = at<float>(memory, weight_at);

        // Pairs sorted by expert, those of one expert by row and slot.
        for (i64 e = 0; e < count; e++) new (job + e) Job{call.experts[e], &routed_inner, call.limit, 0, 0, 0, 0, 0};
        for (i64 i = 0; i < chunk * slots; i++)
            if (const i64 e = number_of(id[i]); e >= 0) job[e].rows++;
        for (i64 e = 0, first = 0; e < count; e++) {
            job[e].first = first;
            first += job[e].rows;
            job[e].rows = 0;
        }
        for (i64 i = 0; i < chunk * slots; i++) {
            const i64 e = number_of(id[i]);
            if (e < 0) continue;
            const i64 pair = job[e].first + job[e].rows++;
            input_row[pair] = i / slots;
            if (part) part[pair] = from * slots + i;
            weight[pair] = parts ? 1.0f : call.weights[from * slots + i];
        }
        if (shared) new (job + count) Job{shared, &last_inner, call.shared_limit, routed, chunk, 0, 0, 0};
        for (i64 r = 0; r < shared_rows; r++) {
            input_row[routed + r] = r;
            if (part) part[routed + r] = call.rows * slots + from + r;
            weight[routed + r] = 1.0f;
        }
        float* out = parts ? call.out : call.out + from * hidden;
        const Round round = {job, jobs, input_row, part,  weight, call.x + from * hidden, out, call.more,
                             chunk, hidden, &x_quantised, memory};
        if (x_quantised.needed())
            parallel_for((chunk + 3) / 4, threads_for(chunk * hidden / 4, threads), [&](i64 piece) {
                for (i64 r = 4 * piece; r < std::min(chunk, 4 * piece + 4); r++)
                    x_quantised.fill(memory, r, round.x + r * hidden);
            });
        run(round, threads);
    }
}

}  // namespace

void ps_experts(const ps_expert* const* experts, const i64* expert_ids, i64 count, const i64* ids,
                const float* weights, i64 slots, float limit, const ps_expert* shared, float shared_limit,
                const float* x, i64 rows, float* out, i64 more, i64 threads) {
    run({experts, expert_ids, count, ids, weights, slots, limit, shared, shared_limit, x, rows, out, more != 0}, threads);
}

void ps_expert_parts(const ps_expert* const* experts, const i64* expert_ids, i64 count, const i64* ids, i64 slots,
                     float limit, const ps_expert* shared, float shared_limit, const float* x, i64 rows, float* parts,
                     i64 threads) {
    run({experts, expert_ids, count, ids, nullptr, slots, limit, shared, shared_limit, x, rows, parts, false}, threads);
}

void ps_expert_sum(const i64* ids, const float* weights, i64 rows, i64 slots, i64 shared, const float* parts,
                   i64 hidden, float* out, i64 threads) {
    parallel_for(rows, threads_for(rows * slots * hidden / 8, threads), [&](i64 row) {
        Scratch<For::PIECE> scratch(slots * static_cast<i64>(sizeof(i64)));
        i64* order = at<i64>(scratch.memory(), 0);
        for (i64 i = 0; i < slots; i++) order[i] = i;
        const i64* id = ids + row * slots;
        std::stable_sort(order, order + slots, [&](i64 a, i64 b) { return id[a] < id[b]; });
        float* sum = out + row * hidden;
        std::fill_n(sum, hidden, 0.0f);
        for (i64 i = 0; i < slots; i++) {
            const i64 pair = row * slots + order[i];
            kernels().add_scaled(weights[pair], parts + pair * hidden, hidden, sum);
        }
        if (shared) kernels().add_scaled(1.0f, parts + (rows * slots + row) * hidden, hidden, sum);
    });
}

void ps_expert_add(const float* y, const float* weights, const i64* rows, i64 count, i64 hidden, float* out) {
    for (i64 i = 0; i < count; i++) kernels().add_scaled(weights[i], y + i * hidden, hidden, out + rows[i] * hidden);
}
