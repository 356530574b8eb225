// How products are cut into pieces for the threads.
#include "products.h"

#include <algorithm>

#include "inputs.h"
#include "observe.h"
#include "step_bytes.h"
#include "threads.h"
#include "weight_rows.h"

namespace {

constexpr i64 CHUNK = 512;        // input rows made ready at a time: bounds the memory a call takes
constexpr i64 PIECE_TIME = 40000;  // nanoseconds a piece should take: long against handing it out, short against waiting

// One weight (or one group of its rows) on one set of inputs.
struct Product {
    const ps_weight* weight;
    i64 first, last;  // weight rows
    Inputs inputs;
    float* out;  // of weight row `first`
    i64 out_stride;
    i64 step = 0, input_step = 0, pieces = 0;  // how it is cut

    void cut(i64 threads) {
        const i64 rows = last - first, bytes = row_bytes(weight->type, weight->columns);
        const i64 time = std::max<i64>(1, time_of(bytes, row_work(*weight, inputs.rows)));
        const i64 fair = std::max<i64>(1, (rows + 4 * threads - 1) / (4 * threads));
        step = std::clamp<i64>(PIECE_TIME / time, 4, std::max<i64>({4, fair, SHORTEST_PIECE / time}));
        input_step = inputs.rows;
        if (weight->type == W_DECODED) {  // every row is decoded once, and many together
            step = slab_rows(weight->columns);
        } else if (inputs.rows > few_inputs(weight->type)) {  // whole panels; if these are few, the inputs are divided too
            step = kernels().panel;
            const i64 panels = (rows + step - 1) / step, parts = (4 * threads + panels - 1) / panels;
            if (threads > 1) input_step = std::max<i64>(32, (inputs.rows + parts - 1) / parts);
        }
        pieces = (rows + step - 1) / step * ((inputs.rows + input_step - 1) / input_step);
    }

    void run(i64 piece, void* scratch) const {
        const i64 parts = (inputs.rows + input_step - 1) / input_step;
        const i64 begin = first + piece / parts * step, end = std::min(begin + step, last);
        const i64 row = piece % parts * input_step;
        Inputs in = inputs;
        in.rows = std::min(input_step, inputs.rows - row);
        const i64 skip = row * in.blocks;
        in.x += row * in.x_stride;
        for (const i16*& values : in.values) values = values ? values + row * BLOCK : nullptr;
        in.scales = in.scales ? in.scales + skip : nullptr;
        in.sums = in.sums ? in.sums + skip * SUMS : nullptr;
        WeightRows(*weight, begin, end).multiply(in, out + row * out_stride + begin - first, out_stride, scratch);
    }

    i64 time() const {
        const i64 rows = last - first;
        return time_of(rows * row_bytes(weight->type, weight->columns), rows * row_work(*weight, inputs.rows));
    }
};

void run_all(Product* products, i64 count, i64 threads) {
    i64 time = 0, pieces = 0;
    for (i64 i = 0; i < count; i++) time += products[i].time();
    threads = threads_for(time, threads);
    for (i64 i = 0; i < count; i++) {
        products[i].cut(threads);
        pieces += products[i].pieces;
    }
    parallel_for(pieces, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(products_piece_bytes());
        const Product* product = products;
        for (; piece >= product->pieces; product++) piece -= product->pieces;
        product->run(piece, scratch.memory());
    });
}

// The memory of a call for one chunk of rows: of `groups` inputs each, for `count` products.
struct Memory {
    Layout layout;
    i64 products;
    ReadyInputs inputs;

    Memory(i64 count, i64 rows, i64 groups, i64 columns, const Needs& needs)
        : products(layout.add<Product>(count)), inputs(layout, rows * groups, columns, needs) {}
};

// x: `rows` rows of `groups` inputs, x_stride apart.  Filled group by group.
void fill_rows(const ReadyInputs& inputs, void* memory, const float* x, i64 rows, i64 groups, i64 x_stride, i64 columns,
               i64 threads) {
    if (!inputs.needed()) return;
    const i64 all = rows * groups, step = 4;
    parallel_for((all + step - 1) / step, threads_for(all * columns / 4, threads), [&](i64 piece) {
        for (i64 i = piece * step; i < std::min(all, (piece + 1) * step); i++)
            inputs.fill(memory, i, x + i % rows * x_stride + i / rows * columns);
    });
}

// Rows of a grouped product at a time.
i64 grouped_rows(i64 groups) { return std::max<i64>(CHUNK / 4, CHUNK / groups); }

}  // namespace

i64 decoded_floats(i64 columns) { return slab_rows(columns) * columns; }

i64 products_piece_bytes() { return kernels().scratch_bytes; }

i64 products_bytes(const ps_step_sizes& s, i64 count, i64 rows, i64 columns, i64 groups) {
    rows = std::min(rows, groups > 1 ? grouped_rows(groups) : CHUNK);
    Needs needs = most_needs(s);
    if (rows > FEW) needs.orders[EXACT][PLANES] = needs.orders[ROUNDED][PLANES] = false;
    return Memory(count, rows, groups, columns, needs).layout.bytes();
}

void ps_products(const ps_weight* const* weights, i64 count, const float* x, i64 x_stride, i64 rows,
                 float* const* outs, const i64* out_strides, i64 threads) {
    if (count == 0) return;
    const i64 columns = weights[0]->columns;
    for (i64 i = 0; i < count; i++) observe(*weights[i], 0, x, x_stride, nullptr, rows);
    for (i64 from = 0; from < rows; from += CHUNK) {
        const i64 chunk = std::min(CHUNK, rows - from);
        Needs needs;
        for (i64 i = 0; i < count; i++) needs.add(*weights[i], chunk);
        const Memory memory(count, chunk, 1, columns, needs);
        Scratch<For::CALL> scratch(memory.layout.bytes());
        const float* input = x + from * x_stride;
        fill_rows(memory.inputs, scratch.memory(), input, chunk, 1, x_stride, columns, threads);
        Product* products = at<Product>(scratch.memory(), memory.products);
        for (i64 i = 0; i < count; i++)
            new (products + i) Product{
                weights[i], 0, weights[i]->rows,
                memory.inputs.inputs(scratch.memory(), precision_of(*weights[i]), 0, input, x_stride, nullptr, chunk),
                outs[i] + from * out_strides[i], out_strides[i]};
        run_all(products, count, threads);
    }
}

void ps_grouped_product(const ps_weight* weight, i64 groups, const float* x, i64 x_stride, i64 rows, float* out,
                        i64 out_stride, i64 threads) {
    const i64 columns = weight->columns, part = weight->rows / groups, limit = grouped_rows(groups);
    for (i64 g = 0; g < groups; g++) observe(*weight, g, x + g * columns, x_stride, nullptr, rows);
    for (i64 from = 0; from < rows; from += limit) {
        const i64 chunk = std::min(limit, rows - from);
        Needs needs;
        needs.add(*weight, chunk);
        const Memory memory(groups, chunk, groups, columns, needs);
        Scratch<For::CALL> scratch(memory.layout.bytes());
        const float* input = x + from * x_stride;
        fill_rows(memory.inputs, scratch.memory(), input, chunk, groups, x_stride, columns, threads);
        Product* products = at<Product>(scratch.memory(), memory.products);
        for (i64 g = 0; g < groups; g++)
            new (products + g) Product{weight, g * part, (g + 1) * part,
                                       memory.inputs.inputs(scratch.memory(), precision_of(*weight), g * chunk,
                                                            input + g * columns, x_stride, nullptr, chunk),
                                       out + from * out_stride + g * part, out_stride};
        run_all(products, groups, threads);
    }
}
