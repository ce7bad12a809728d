/* storage/history.h - numbers for pages, kept for a while after a page has left its frame.
 *
 * A policy says which page a frame now holds and gets the page's number: the same one for as long
 * as the page is remembered. Pages in frames always are; of those that left, the one that left
 * first is forgotten first. Nothing is allocated after init.
 */
#ifndef STORAGE_HISTORY_H
#define STORAGE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/page_index.h"
#include "storage/policy.h"

enum { NO_PAGE = UINT32_MAX };

struct history {
    uint32_t n_max;     /* numbers are below this */
    uint32_t *of_frame; /* [n_frames] the number of the page it holds, or NO_PAGE */
    struct history_page {
        struct extent at;
        uint32_t frame;        /* NO_FRAME: it left */
        uint32_t older, newer; /* among those that left */
    } * page;                  /* [n_max] */
    uint32_t n;                /* numbers given out so far */
    uint32_t oldest, newest;   /* of those that left, or NO_PAGE */
    struct page_index index;   /* extent -> number */
};

/* How many pages to remember, those in frames included. */
uint32_t history_size(unsigned n_frames, const struct policy_known *known);

/* For n_max >= n_frames pages. False: no memory; release what there is. */
bool history_init(struct history *h, unsigned n_frames, uint32_t n_max);
void history_release(struct history *h); /* null-safe on a zeroed struct */

/* The frame now holds this page and no longer what it held. Returns its number; *is_new: nothing
 * is remembered of it, and what was kept under this number was another page's. */
uint32_t history_loaded(struct history *h, unsigned frame, struct extent at, bool *is_new);

#endif
