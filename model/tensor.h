/* model/tensor.h - row view of a resident weight: y[rows] = W[rows][cols] x[cols]. */
#ifndef MODEL_TENSOR_H
#define MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "expertfs/format.h"

struct tensor {
    int fmt; /* FMT_F32, FMT_Q8G, FMT_Q4G, FMT_Q3G */
    uint32_t rows, cols;
    uint32_t groups;       /* scales per row: ceil(cols / 128); 0 for F32 */
    size_t row_bytes;      /* stride of data; whole groups, padding columns encode zero; Q3G rows
                              end in a guard byte that is read: 48 * groups + 1 */
    const uint8_t *data;   /* 64-byte aligned; F32 rows are float[cols] */
    const uint16_t *scale; /* [rows][groups] f16 */
};

#endif
