/* The floor of a random batch: copy rows of 28 bytes from given places, asking for each 32 rows ahead.
 * Nothing is checked and nothing is made of the rows. And asking alone, for one line of each row, which any
 * loop in this order has to do. Compiled and called by floor.py. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { AHEAD = 32, BYTES = 28 };

/* A constant size makes memcpy a few moves. A row that crosses a cache line needs both. */
void gather(const uint8_t *rows, const uint64_t *indices, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            const uint8_t *next = rows + indices[i + AHEAD] * BYTES;
            __builtin_prefetch(next);
            __builtin_prefetch(next + BYTES - 1);
        }
        memcpy(out + i * BYTES, rows + indices[i] * BYTES, BYTES);
    }
}

void ask(const uint8_t *rows, const uint64_t *indices, size_t count)
{
    for (size_t i = 0; i < count; i++)
        __builtin_prefetch(rows + indices[i] * BYTES, 0, 2);
}
