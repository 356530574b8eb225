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
    const float* weight;   // of every pair
    const float* x;
    float* out;  // [rows, hidden]
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
        kernels().multiply(job.expert->gate, begin, begin + n, in, gate, n, scratch);
        kernels().multiply(job.expert->up, begin, begin + n, in, up, n, scratch);
        for (i64 i = 0; i < rows; i++)
            ps_swiglu(gate + i * n, up + i * n, n, job.limit,
                      inner.values + (pair - inner.first + i) * inner.width + begin);
    }
    if (job.left.fetch_sub(1, std::memory_order_acq_rel) != 1 || !inner.quantised->needed()) return;
    for (i64 i = job.first - inner.first; i < job.first - inner.first + job.rows; i++)
        inner.quantised->fill(round.memory, i, inner.values + i * inner.width);
}

void down(const Round& round, i64 begin, i64 n, void* scratch, float* part) {
    for (i64 r = 0; r < round.rows; r++) std::fill_n(round.out + r * round.hidden + begin, n, 0.0f);
    for (Job* job = round.jobs; job < round.jobs + round.count; job++)
        for (i64 from = 0; from < job->rows; from += PART) {
            const Inner& inner = *job->inner;
            const i64 rows = std::min(PART, job->rows - from), pair = job->first + from, row = pair - inner.first;
            const Inputs in = inner.quantised->inputs(round.memory, row, inner.values + row * inner.width, inner.width,
                                                      nullptr, rows);
            kernels().multiply(job->expert->down, begin, begin + n, in, part, n, scratch);
            for (i64 i = 0; i < rows; i++) {
                float* out = round.out + round.input_row[pair + i] * round.hidden + begin;
                kernels().add_scaled(round.weight[pair + i], part + i * n, n, out);
            }
        }
}

void run(const Round& round, i64 threads) {
    const i64 panel = kernels().panel;
    i64 time = 0, pieces = 0;
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) {
        const i64 bytes = bytes_of(job->expert->gate) + bytes_of(job->expert->up);
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

}  // namespace

void ps_experts(const ps_expert* const* experts, const i64* expert_ids, i64 count, const i64* ids,
                const float* weights, i64 slots, float limit, const ps_expert* shared, float shared_limit,
                const float* x, i64 rows, float* out, i64 threads) {
    if (rows == 0) return;
    const i64 jobs = count + (shared ? 1 : 0);
    const i64 hidden = (shared ? shared : experts[0])->gate.columns;
    const i64 width = count ? experts[0]->gate.rows : 0, shared_width = shared ? shared->gate.rows : 0;
    auto number_of = [&](i64 id) { return std::lower_bound(expert_ids, expert_ids + count, id) - expert_ids; };
    for (i64 from = 0; from < rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, rows - from), routed = chunk * slots, shared_rows = shared ? chunk : 0;
        const i64* id = ids + from * slots;
        Orders outer, inner, shared_inner;
        {
            Scratch<For::PIECE> counting(count * static_cast<i64>(sizeof(i64)));
            i64* inputs = at<i64>(counting.memory(), 0);  // of every expert
            std::fill_n(inputs, count, 0);
            for (i64 i = 0; i < routed; i++) inputs[number_of(id[i])]++;
            auto add = [&](const ps_expert& expert, i64 n, Orders& down) {
                outer.add(expert.gate, n);
                outer.add(expert.up, n);
                down.add(expert.down, n);
            };
            for (i64 e = 0; e < count; e++) add(*experts[e], inputs[e], inner);
            if (shared) add(*shared, chunk, shared_inner);
        }
        Layout layout;
        const i64 jobs_at = layout.add<Job>(jobs), row_at = layout.add<i64>(routed + shared_rows);
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
        i64* input_row = at<i64>(memory, row_at);
        float* weight = at<float>(memory, weight_at);

        // Pairs sorted by expert, those of one expert by row and slot.
        for (i64 e = 0; e < count; e++) new (job + e) Job{experts[e], &routed_inner, limit, 0, 0, 0, 0, 0};
        for (i64 i = 0; i < routed; i++) job[number_of(id[i])].rows++;
        for (i64 e = 0, first = 0; e < count; e++) {
            job[e].first = first;
            first += job[e].rows;
            job[e].rows = 0;
        }
        for (i64 i = 0; i < routed; i++) {
            Job* mine = job + number_of(id[i]);
            const i64 pair = mine->first + mine->rows++;
            input_row[pair] = i / slots;
            weight[pair] = weights[from * slots + i];
        }
        if (shared) new (job + count) Job{shared, &last_inner, shared_limit, routed, chunk, 0, 0, 0};
        for (i64 r = 0; r < shared_rows; r++) {
            input_row[routed + r] = r;
            weight[routed + r] = 1.0f;
        }
        const Round round = {job,          jobs,   input_row,    weight, x + from * hidden, out + from * hidden, chunk,
                             hidden, &x_quantised, memory};
        if (x_quantised.needed())
            parallel_for((chunk + 3) / 4, threads_for(chunk * hidden / 4, threads), [&](i64 piece) {
                for (i64 r = 4 * piece; r < std::min(chunk, 4 * piece + 4); r++)
                    x_quantised.fill(memory, r, round.x + r * hidden);
            });
        run(round, threads);
    }
}
