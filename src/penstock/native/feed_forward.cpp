// Routed experts, and the shared one along with them.
//
// Two rounds of pieces.  First gate and up: every piece is some rows of one expert's two matrices, for all inputs that
// go to that expert; whoever finishes an expert's last piece makes what came out ready for down.  Then down: every
// piece is a range of output columns, for all experts in their order, so that sums are made in that order without being
// stored.
#include <algorithm>
#include <atomic>
#include <vector>

#include "inputs.h"
#include "observe.h"
#include "step_bytes.h"
#include "step_kernels.h"
#include "threads.h"
#include "weight_rows.h"

namespace {

constexpr i64 CHUNK = 512;  // input rows at a time: bounds the memory a call takes
constexpr i64 PART = 128;   // inputs of one expert in a piece at a time: bounds the memory a piece takes
constexpr i64 WIDEST = 16;  // panels in a piece, at most.  Large ones: weights are streams, slow to begin

// What comes out of gate and up, for experts of one width: [pairs, width].
struct Inner {
    float* values;
    i64 width;
    const ReadyInputs* ready;
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
    const i64* term;       // of every pair: its number among the terms, which are wanted in place of a sum (or null)
    const float* weight;   // of every pair
    const float* x;
    float* out;  // [rows, hidden], or the terms
    bool more;
    i64 rows, hidden;
    const ReadyInputs* ready;  // x
    void* memory;
};

// Rows of some weights in a piece: `step`, or, where some have to be decoded, as many as are decoded together.
class PieceRows {
  public:
    void add(const ps_weight& weight) {
        if (weight.type != W_DECODED) return;
        slab_ = std::min(slab_ ? slab_ : WIDEST * kernels().panel, slab_rows(weight.columns));
    }
    i64 or_else(i64 step) const { return slab_ ? slab_ : step; }

  private:
    i64 slab_ = 0;
};

i64 row_time(const ps_weight& weight, i64 inputs) {
    return time_of(row_bytes(weight.type, weight.columns), row_work(weight, inputs));
}

// What came out of an expert's gate and up, made ready.  A rounded input of down is the weighted one.
void finish_inner(const Round& round, const Job& job) {
    const Inner& inner = *job.inner;
    const i64 group = job.expert->down->round_input;
    if (!group && !inner.ready->needed()) return;
    for (i64 pair = job.first; pair < job.first + job.rows; pair++) {
        float* values = inner.values + (pair - inner.first) * inner.width;
        if (group) {
            for (i64 i = 0; i < inner.width; i++) values[i] *= round.weight[pair];
            round_fp8(values, inner.width, group);
        }
        inner.ready->fill(round.memory, pair - inner.first, values);
    }
}

void gate_and_up(const Round& round, Job& job, i64 piece, void* scratch, float* gate, float* up) {
    const Inner& inner = *job.inner;
    const i64 begin = piece * job.step, n = std::min(job.step, inner.width - begin);
    const ps_weight &gate_weight = *job.expert->gate, &up_weight = *job.expert->up;
    const WeightRows<DECODED> gate_rows(gate_weight, begin, begin + n);
    const WeightRows<DECODED_TOO> up_rows(up_weight, begin, begin + n);
    for (i64 from = 0; from < job.rows; from += PART) {
        const i64 rows = std::min(PART, job.rows - from), pair = job.first + from;
        auto inputs = [&](const ps_weight& weight) {
            return round.ready->inputs(round.memory, precision_of(weight), 0, round.x, round.hidden,
                                       round.input_row + pair, rows);
        };
        gate_rows.multiply(inputs(gate_weight), gate, n, scratch);
        up_rows.multiply(inputs(up_weight), up, n, scratch);
        for (i64 i = 0; i < rows; i++)
            kernels().steps.swiglu(gate + i * n, up + i * n, n, job.limit,
                                   inner.values + (pair - inner.first + i) * inner.width + begin);
    }
    if (job.left.fetch_sub(1, std::memory_order_acq_rel) == 1) finish_inner(round, job);
}

void down(const Round& round, i64 begin, i64 n, void* scratch, float* part) {
    if (!round.more && !round.term)
        for (i64 r = 0; r < round.rows; r++) std::fill_n(round.out + r * round.hidden + begin, n, 0.0f);
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) {
        if (job->rows == 0) continue;
        const Inner& inner = *job->inner;
        const ps_weight& weight = *job->expert->down;
        const WeightRows rows_of_weight(weight, begin, begin + n);
        for (i64 from = 0; from < job->rows; from += PART) {
            const i64 rows = std::min(PART, job->rows - from), pair = job->first + from, row = pair - inner.first;
            // Where they are rounded at all, they are so in place.
            const Inputs in = inner.ready->inputs(round.memory, EXACT, row, inner.values + row * inner.width,
                                                  inner.width, nullptr, rows);
            rows_of_weight.multiply(in, part, n, scratch);
            for (i64 i = 0; i < rows; i++) {
                if (round.term) {
                    std::copy_n(part + i * n, n, round.out + round.term[pair + i] * round.hidden + begin);
                    continue;
                }
                float* out = round.out + round.input_row[pair + i] * round.hidden + begin;
                kernels().add_scaled(weight.round_input ? 1.0f : round.weight[pair + i], part + i * n, n, out);
            }
        }
    }
}

i64 room() { return PART * WIDEST * kernels().panel; }  // floats of a piece's results, at most

void run(const Round& round, i64 threads) {
    const i64 panel = kernels().panel;
    i64 time = 0, pieces = 0, busy = 0;
    for (const Job* job = round.jobs; job < round.jobs + round.count; job++) busy += job->rows > 0;
    const i64 share = std::max<i64>(1, busy / 3);  // several experts are pieces themselves
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) {
        const ps_weight &gate = *job->expert->gate, &up = *job->expert->up;
        PieceRows piece;
        piece.add(gate);
        piece.add(up);
        const i64 time_of_row = row_time(gate, job->rows) + row_time(up, job->rows);
        const i64 fair = std::max(job->inner->width * share / (4 * threads), SHORTEST_PIECE / std::max<i64>(1, time_of_row));
        job->step = piece.or_else(
            std::clamp<i64>(fair / panel, 1, job->rows > few_inputs(gate.type) ? 8 : WIDEST) * panel);
        job->pieces = job->rows ? (job->inner->width + job->step - 1) / job->step : 0;
        job->left.store(job->pieces, std::memory_order_relaxed);
        pieces += job->pieces;
        time += job->inner->width * time_of_row;
    }
    threads = threads_for(time, threads);
    // The last expert first: the shared one has the most inputs to make ready at the end.
    parallel_for(pieces, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(experts_piece_bytes());
        float* gate = at<float>(scratch.memory(), kernels().scratch_bytes);
        Job* job = round.jobs + round.count - 1;
        for (; piece >= job->pieces; job--) piece -= job->pieces;
        gate_and_up(round, *job, piece, scratch.memory(), gate, gate + room());
    });
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) {
        const Inner& inner = *job->inner;
        for (const ps_weight* weight : {job->expert->gate, job->expert->up})
            observe(*weight, 0, round.x, round.hidden, round.input_row + job->first, job->rows);
        observe(*job->expert->down, 0, inner.values + (job->first - inner.first) * inner.width, inner.width, nullptr,
                job->rows);
    }
    PieceRows piece_rows;
    for (Job* job = round.jobs; job < round.jobs + round.count; job++) piece_rows.add(*job->expert->down);
    const i64 step = piece_rows.or_else(std::clamp<i64>(round.hidden / (4 * threads) / panel, 1, WIDEST) * panel);
    parallel_for((round.hidden + step - 1) / step, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(experts_piece_bytes());
        const i64 begin = piece * step;
        down(round, begin, std::min(step, round.hidden - begin), scratch.memory(),
             at<float>(scratch.memory(), kernels().scratch_bytes));
    });
}

// The memory of a call for one chunk of input rows.
struct Memory {
    Layout layout;
    i64 jobs, input_row, term, weight, inner, shared_inner;
    ReadyInputs ready, inner_ready, shared_ready;

    // pairs: of (input row, routed expert).
    Memory(i64 jobs, i64 chunk, i64 pairs, i64 shared_rows, i64 hidden, i64 width, i64 shared_width, const Needs& outer,
           const Needs& inner, const Needs& shared_inner)
        : jobs(layout.add<Job>(jobs)),
          input_row(layout.add<i64>(pairs + shared_rows)),
          term(layout.add<i64>(pairs + shared_rows)),
          weight(layout.add<float>(pairs + shared_rows)),
          inner(layout.add<float>(pairs * width)),
          shared_inner(layout.add<float>(shared_rows * shared_width)),
          ready(layout, chunk, hidden, outer),
          inner_ready(layout, pairs, width, inner),
          shared_ready(layout, shared_rows, shared_width, shared_inner) {}
};

// The experts of a call in ascending order of id: those that rows name and the table has.
struct Chosen {
    std::vector<i64> number;  // by id: among the chosen, or -1
    std::vector<const ps_expert*> experts;

    Chosen(const ps_expert* const* table, i64 all, const i64* ids, i64 count) : number(static_cast<std::size_t>(all), -1) {
        for (i64 i = 0; i < count; i++)
            if (table[ids[i]]) number[static_cast<std::size_t>(ids[i])] = 0;
        for (i64 id = 0; id < all; id++)
            if (i64& own = number[static_cast<std::size_t>(id)]; own == 0) {
                own = static_cast<i64>(experts.size());
                experts.push_back(table[id]);
            }
    }
};

// What both entry points are given.
struct Call {
    const ps_expert* const* table;
    i64 experts;  // in it
    const i64* ids;
    const float* weights;
    i64 slots;
    float limit;
    const ps_expert* shared;
    float shared_limit;
    const float* x;
    i64 rows;
    float* out;
    bool more, terms;
};

void run(const Call& call, i64 threads) {
    const i64 slots = call.slots;
    const Chosen chosen(call.table, call.experts, call.ids, call.rows * slots);
    const i64 count = static_cast<i64>(chosen.experts.size());
    const ps_expert* const* experts = chosen.experts.data();
    const ps_expert* shared = call.shared;
    if (call.rows == 0 || (count == 0 && !shared)) return;
    const i64 jobs = count + (shared ? 1 : 0);
    const i64 hidden = (shared ? shared : experts[0])->gate->columns;
    const i64 width = count ? experts[0]->gate->rows : 0, shared_width = shared ? shared->gate->rows : 0;
    auto number_of = [&](i64 id) { return chosen.number[static_cast<std::size_t>(id)]; };
    for (i64 from = 0; from < call.rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, call.rows - from), shared_rows = shared ? chunk : 0;
        const i64* id = call.ids + from * slots;
        i64 routed = 0;
        Needs outer, inner, shared_inner;
        {
            Scratch<For::PIECE> counting(count * static_cast<i64>(sizeof(i64)));
            i64* inputs = at<i64>(counting.memory(), 0);  // of every expert
            std::fill_n(inputs, count, 0);
            for (i64 i = 0; i < chunk * slots; i++)
                if (const i64 e = number_of(id[i]); e >= 0) {
                    inputs[e]++;
                    routed++;
                }
            auto add = [&](const ps_expert& expert, i64 n, Needs& down) {
                outer.add(*expert.gate, n);
                outer.add(*expert.up, n);
                down.add(*expert.down, n, EXACT);  // see finish_inner
            };
            for (i64 e = 0; e < count; e++) add(*experts[e], inputs[e], inner);
            if (shared) add(*shared, chunk, shared_inner);
        }
        const Memory places(jobs, chunk, routed, shared_rows, hidden, width, shared_width, outer, inner, shared_inner);
        Scratch<For::CALL> scratch(places.layout.bytes());
        void* memory = scratch.memory();
        const Inner routed_inner = {at<float>(memory, places.inner), width, &places.inner_ready, 0};
        const Inner last_inner = {at<float>(memory, places.shared_inner), shared_width, &places.shared_ready, routed};
        Job* job = at<Job>(memory, places.jobs);
        i64 *input_row = at<i64>(memory, places.input_row), *term = at<i64>(memory, places.term);
        float* weight = at<float>(memory, places.weight);

        // Pairs sorted by expert, those of one expert by row and slot.
        for (i64 e = 0; e < count; e++) new (job + e) Job{experts[e], &routed_inner, call.limit, 0, 0, 0, 0, 0};
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
            term[pair] = from * slots + i;
            weight[pair] = call.weights ? call.weights[from * slots + i] : 1.0f;
        }
        if (shared) new (job + count) Job{shared, &last_inner, call.shared_limit, routed, chunk, 0, 0, 0};
        for (i64 r = 0; r < shared_rows; r++) {
            input_row[routed + r] = r;
            term[routed + r] = call.rows * slots + from + r;
            weight[routed + r] = 1.0f;
        }
        const Round round = {.jobs = job,
                             .count = jobs,
                             .input_row = input_row,
                             .term = call.terms ? term : nullptr,
                             .weight = weight,
                             .x = call.x + from * hidden,
                             .out = call.terms ? call.out : call.out + from * hidden,
                             .more = call.more,
                             .rows = chunk,
                             .hidden = hidden,
                             .ready = &places.ready,
                             .memory = memory};
        if (places.ready.needed())
            parallel_for((chunk + 3) / 4, threads_for(chunk * hidden / 4, threads), [&](i64 piece) {
                for (i64 r = 4 * piece; r < std::min(chunk, 4 * piece + 4); r++)
                    places.ready.fill(memory, r, round.x + r * hidden);
            });
        run(round, threads);
    }
}

}  // namespace

i64 experts_piece_bytes() { return kernels().scratch_bytes + float_bytes(2 * room()); }

i64 experts_bytes(const ps_step_sizes& s, i64 rows) {
    const i64 chunk = std::min(rows, CHUNK);
    const Needs needs = most_needs(s);
    Needs inner = needs;
    inner.round = 0;  // rounded in place
    for (bool& order : inner.orders[ROUNDED]) order = false;
    return Memory(s.experts + 1, chunk, chunk * s.experts_used, chunk, s.hidden, s.expert_width, s.shared_width, needs,
                  inner, inner).layout.bytes();
}

void ps_experts(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights, i64 slots, float limit,
                const ps_expert* shared, float shared_limit, const float* x, i64 rows, float* out, i64 more,
                i64 threads) {
    run({table, experts, ids, weights, slots, limit, shared, shared_limit, x, rows, out, more != 0, false}, threads);
}

void ps_expert_terms(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights, i64 slots,
                     float limit, const ps_expert* shared, float shared_limit, const float* x, i64 rows, float* terms,
                     i64 threads) {
    run({table, experts, ids, weights, slots, limit, shared, shared_limit, x, rows, terms, false, true}, threads);
}

void ps_expert_sum(const i64* ids, const float* weights, i64 rows, i64 slots, i64 shared, const float* terms,
                   i64 hidden, float* out, i64 threads) {
    parallel_for(rows, threads_for(rows * slots * hidden / 8, threads), [&](i64 row) {
        Scratch<For::PIECE> scratch(slots * static_cast<i64>(sizeof(i64)));
        i64* order = at<i64>(scratch.memory(), 0);
        for (i64 i = 0; i < slots; i++) order[i] = i;
        const i64* id = ids + row * slots;
        std::sort(order, order + slots, [&](i64 a, i64 b) { return id[a] != id[b] ? id[a] < id[b] : a < b; });
        float* sum = out + row * hidden;
        std::fill_n(sum, hidden, 0.0f);
        for (i64 i = 0; i < slots; i++) {
            const i64 pair = row * slots + order[i];
            kernels().add_scaled(weights ? weights[pair] : 1.0f, terms + pair * hidden, hidden, sum);
        }
        if (shared) kernels().add_scaled(1.0f, terms + (rows * slots + row) * hidden, hidden, sum);
    });
}
