/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * memcached's text protocol (doc/protocol.txt of its source), with its answers to what is wrong.
 *
 * Lists of keys are answered key by key as they arrive: their line may be of any length, and the
 * replies to it never pile up.
 */
#define _GNU_SOURCE
#include "server.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 8 };

struct word {
    char *text;
    size_t len;
};

static const char bad_line[] = "CLIENT_ERROR bad command line format";

static bool is(const struct word *word, const char *text)
{
    return word->len == strlen(text) && memcmp(word->text, text, word->len) == 0;
}

/* The words of a line; more than WORDS_MAX are counted as that many. */
static int split(char *line, size_t len, struct word words[WORDS_MAX])
{
    int n = 0;
    char *at = line, *end = line + len;
    while (n < WORDS_MAX) {
        while (at < end && *at == ' ')
            at++;
        if (at == end)
            break;
        char *start = at;
        while (at < end && *at != ' ')
            at++;
        words[n++] = (struct word){ start, (size_t)(at - start) };
    }
    return n;
}

/* The last word counts, whatever it stands for otherwise: memcached looks there first, too. */
static bool says_noreply(const struct word *words, int n)
{
    return n > 1 && is(&words[n - 1], "noreply");
}

/* A whole decimal number within a range; a minus sign if the range has negative ones. */
static bool number(const struct word *word, int64_t least, int64_t most, int64_t *value)
{
    bool negative = word->len > 0 && word->text[0] == '-';
    int64_t sum = 0;
    if (word->len == (size_t)negative)
        return false;
    for (size_t i = negative; i < word->len; i++) {
        char digit = word->text[i];
        if (digit < '0' || digit > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_sub_overflow(sum, digit - '0', &sum))
            return false;
    }
    if (!negative && (sum == INT64_MIN))
        return false;
    *value = negative ? sum : -sum;
    return *value >= least && *value <= most;
}

static bool number_u64(const struct word *word, uint64_t *value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < word->len; i++) {
        char digit = word->text[i];
        if (digit < '0' || digit > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(digit - '0'), &sum))
            return false;
    }
    *value = sum;
    return word->len > 0;
}

/* Digits of a number, behind a space. */
static char *put_number(char *out, uint64_t value)
{
    char digits[20];
    int n = 0;
    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    *out++ = ' ';
    while (n > 0)
        *out++ = digits[--n];
    return out;
}

/* The item is locked meanwhile; its bytes are copied, so it may move as soon as this returns. */
static void emit_value(void *context, const struct item *item)
{
    struct connection *c = context;
    char head[6 + KEY_MAX_BYTES + 3 * 21 + 2] = "VALUE ";
    memcpy(head + 6, item_key(item), item->key_len);
    char *end = put_number(head + 6 + item->key_len, item->flags);
    end = put_number(end, item->bytes);
    if (c->with_cas)
        end = put_number(end, item->cas);
    *end++ = '\r';
    *end++ = '\n';
    reply(c, head, (size_t)(end - head));
    reply(c, item_value(item), item->bytes);
    reply(c, "\r\n", 2);
}

static void get_key(struct connection *c, const char *key, size_t len)
{
    struct counters *counters = &c->worker->counters;
    bool hit = cache_get(c->server->cache, key, len, c->now, c->with_touch ? &c->touch : NULL,
                         emit_value, c);
    count(&counters->cmd_get, 1);
    count(hit ? &counters->get_hits : &counters->get_misses, 1);
    if (c->with_touch) {
        count(&counters->cmd_touch, 1);
        count(hit ? &counters->touch_hits : &counters->touch_misses, 1);
    }
}

/* Keys up to the end of the line, as far as they are there. False when more input is needed. */
static bool advance_keys(struct connection *c)
{
    while (c->output_end - c->output_start < OUTPUT_PAUSE && !c->ended) {
        char *at = c->input + c->input_start, *end = c->input + c->input_end;
        while (at < end && *at == ' ')
            at++;
        c->input_start = (size_t)(at - c->input);
        char *stop = at;
        while (stop < end && *stop != ' ' && *stop != '\n')
            stop++;
        size_t len = (size_t)(stop - at);
        if (stop == end) {
            if (len <= KEY_MAX_BYTES + 1)
                return false;
            reply_text(c, bad_line);
            c->state = SWALLOW_LINE;
            return true;
        }
        bool last = *stop == '\n';
        if (last && len > 0 && at[len - 1] == '\r')
            len--;
        if (len > KEY_MAX_BYTES) {
            reply_text(c, bad_line);
            c->state = SWALLOW_LINE;
            return true;
        }
        if (len > 0)
            get_key(c, at, len);
        c->input_start = (size_t)(stop - c->input) + last;
        if (last) {
            reply_text(c, "END");
            c->state = READ_COMMAND;
            return true;
        }
    }
    return false;
}

/* A list of keys whose line is all there is refused as a whole if one of them is too long. */
static bool keys_fit(const char *at, size_t len)
{
    size_t run = 0;
    for (size_t i = 0; i < len && run <= KEY_MAX_BYTES; i++)
        run = at[i] == ' ' ? 0 : run + 1;
    return run <= KEY_MAX_BYTES;
}

static void swallow_value(struct connection *c, size_t bytes)
{
    c->swallow = bytes + 2;
    c->state = SWALLOW_VALUE;
}

static void command_store(struct connection *c, struct word *words, int n, enum store_mode mode)
{
    int wanted = mode == STORE_CAS ? 6 : 5;
    if (n != wanted && n != wanted + 1) {
        reply_text(c, "ERROR");
        return;
    }
    c->quiet = says_noreply(words, n);
    int64_t flags, expires, bytes;
    if (words[1].len > KEY_MAX_BYTES || !number(&words[2], 0, INT64_MAX, &flags) ||
        !number(&words[3], INT32_MIN, INT32_MAX, &expires) ||
        !number(&words[4], INT32_MIN, INT32_MAX, &bytes) || bytes < 0 || bytes > INT32_MAX - 2 ||
        (mode == STORE_CAS && !number_u64(&words[5], &c->cas))) {
        reply_text(c, bad_line);
        return;
    }
    c->mode = mode;
    c->filled = 0;
    struct cache *cache = c->server->cache;
    enum result result = cache_new(cache, words[1].text, words[1].len, (uint32_t)flags,
                                   server_expiry(expires, c->now), (size_t)bytes, c->now, &c->item);
    if (result == RESULT_OK) {
        c->state = READ_VALUE;
        return;
    }
    /* A refusal is an error that noreply does not hide. The old value is not kept: who set it anew
     * must not read it again. */
    c->quiet = false;
    reply_text(c, result == RESULT_TOO_LARGE ? "SERVER_ERROR object too large for cache"
                                             : "SERVER_ERROR out of memory storing object");
    if (mode == STORE_SET)
        cache_delete(cache, words[1].text, words[1].len, c->now);
    c->item = NULL;
    swallow_value(c, (size_t)bytes);
}

static void finish_store(struct connection *c)
{
    static const char *const texts[] = {
        [RESULT_OK] = "STORED",
        [RESULT_NOT_STORED] = "NOT_STORED",
        [RESULT_EXISTS] = "EXISTS",
        [RESULT_NOT_FOUND] = "NOT_FOUND",
        [RESULT_TOO_LARGE] = "SERVER_ERROR object too large for cache",
        [RESULT_NO_MEMORY] = "SERVER_ERROR out of memory storing object",
    };
    struct counters *counters = &c->worker->counters;
    enum result result = cache_store(c->server->cache, c->item, c->mode, c->cas, c->now);
    c->item = NULL;
    count(&counters->cmd_set, 1);
    if (c->mode == STORE_CAS)
        count(result == RESULT_OK       ? &counters->cas_hits
              : result == RESULT_EXISTS ? &counters->cas_badval
                                        : &counters->cas_misses, 1);
    reply_text(c, texts[result]);
}

/* The rest of a value and its line end. False when more input is needed. */
static bool advance_value(struct connection *c)
{
    size_t there = c->input_end - c->input_start;
    size_t part = c->item->bytes - c->filled;
    if (part > there)
        part = there;
    memcpy(item_value(c->item) + c->filled, c->input + c->input_start, part);
    c->filled += part;
    c->input_start += part;
    if (c->filled < c->item->bytes || there - part < 2)
        return false;
    bool ended = memcmp(c->input + c->input_start, "\r\n", 2) == 0;
    c->input_start += 2;
    c->state = READ_COMMAND;
    if (ended) {
        finish_store(c);
        return true;
    }
    cache_drop(c->server->cache, c->item);
    c->item = NULL;
    reply_text(c, "CLIENT_ERROR bad data chunk");
    return true;
}

static void command_delete(struct connection *c, struct word *words, int n)
{
    c->quiet = says_noreply(words, n);
    if (n < 2 || n > 4) {
        reply_text(c, "ERROR");
    } else if (n > 2 && !c->quiet && !is(&words[2], "0")) {
        reply_text(c, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
    } else if (n == 4 && !(is(&words[2], "0") && c->quiet)) {
        reply_text(c, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
    } else if (words[1].len > KEY_MAX_BYTES) {
        reply_text(c, bad_line);
    } else {
        bool hit = cache_delete(c->server->cache, words[1].text, words[1].len, c->now);
        struct counters *counters = &c->worker->counters;
        count(hit ? &counters->delete_hits : &counters->delete_misses, 1);
        reply_text(c, hit ? "DELETED" : "NOT_FOUND");
    }
}

static void command_number(struct connection *c, struct word *words, int n, bool increase)
{
    if (n != 3 && n != 4) {
        reply_text(c, "ERROR");
        return;
    }
    c->quiet = says_noreply(words, n);
    uint64_t delta, value = 0;
    if (words[1].len > KEY_MAX_BYTES) {
        reply_text(c, bad_line);
        return;
    }
    if (!number_u64(&words[2], &delta)) {
        reply_text(c, "CLIENT_ERROR invalid numeric delta argument");
        return;
    }
    struct counters *counters = &c->worker->counters;
    char text[24];
    switch (cache_add_number(c->server->cache, words[1].text, words[1].len, increase, delta, c->now,
                             &value)) {
    case RESULT_OK:
        count(increase ? &counters->incr_hits : &counters->decr_hits, 1);
        snprintf(text, sizeof text, "%" PRIu64, value);
        reply_text(c, text);
        break;
    case RESULT_NOT_FOUND:
        count(increase ? &counters->incr_misses : &counters->decr_misses, 1);
        reply_text(c, "NOT_FOUND");
        break;
    case RESULT_NOT_NUMBER:
        reply_text(c, "CLIENT_ERROR cannot increment or decrement non-numeric value");
        break;
    default:
        reply_text(c, "SERVER_ERROR out of memory in incr");
        break;
    }
}

static void command_touch(struct connection *c, struct word *words, int n)
{
    if (n != 3 && n != 4) {
        reply_text(c, "ERROR");
        return;
    }
    c->quiet = says_noreply(words, n);
    int64_t expires;
    if (words[1].len > KEY_MAX_BYTES) {
        reply_text(c, bad_line);
    } else if (!number(&words[2], INT32_MIN, INT32_MAX, &expires)) {
        reply_text(c, "CLIENT_ERROR invalid exptime argument");
    } else {
        uint32_t at = server_expiry(expires, c->now);
        bool hit = cache_get(c->server->cache, words[1].text, words[1].len, c->now, &at, NULL, NULL);
        struct counters *counters = &c->worker->counters;
        count(&counters->cmd_touch, 1);
        count(hit ? &counters->touch_hits : &counters->touch_misses, 1);
        reply_text(c, hit ? "TOUCHED" : "NOT_FOUND");
    }
}

static void command_flush(struct connection *c, struct word *words, int n)
{
    c->quiet = says_noreply(words, n);
    int arguments = n - 1 - c->quiet;
    int64_t delay = 0;
    if (arguments > 0 && !number(&words[1], INT32_MIN, INT32_MAX, &delay)) {
        reply_text(c, "CLIENT_ERROR invalid exptime argument");
        return;
    }
    count(&c->worker->counters.cmd_flush, 1);
    /* Whatever is not in the future is now. */
    cache_flush(c->server->cache, delay > 0 ? server_expiry(delay, c->now) : 0);
    reply_text(c, "OK");
}

static bool begin_keys(struct connection *c, struct word *words, int n, bool complete, size_t rest)
{
    bool touch = is(&words[0], "gat") || is(&words[0], "gats");
    if (n < 2) {
        reply_text(c, "ERROR");
        return false;
    }
    c->with_cas = words[0].text[words[0].len - 1] == 's';
    c->with_touch = touch;
    int64_t expires = 0;
    if (touch && !number(&words[1], INT32_MIN, INT32_MAX, &expires)) {
        reply_text(c, "CLIENT_ERROR invalid exptime argument");
        return false;
    }
    c->touch = server_expiry(expires, c->now);
    char *keys = touch ? words[1].text + words[1].len : words[1].text;
    if (complete && !keys_fit(keys, rest - (size_t)(keys - words[0].text))) {
        reply_text(c, bad_line);
        return false;
    }
    c->input_start = (size_t)(keys - c->input);
    c->state = READ_KEYS;
    return true;
}

static bool is_get(const struct word *word)
{
    return is(word, "get") || is(word, "gets") || is(word, "gat") || is(word, "gats");
}

/* One command line, without its end. */
static void command(struct connection *c, struct word *words, int n)
{
    static const struct { const char *name; enum store_mode mode; } stores[] = {
        { "set", STORE_SET }, { "add", STORE_ADD }, { "replace", STORE_REPLACE },
        { "append", STORE_APPEND }, { "prepend", STORE_PREPEND }, { "cas", STORE_CAS },
    };
    for (size_t i = 0; n > 0 && i < sizeof stores / sizeof *stores; i++) {
        if (is(&words[0], stores[i].name)) {
            command_store(c, words, n, stores[i].mode);
            return;
        }
    }
    if (n == 0) {
        reply_text(c, "ERROR");
    } else if (is(&words[0], "delete")) {
        command_delete(c, words, n);
    } else if (is(&words[0], "incr") || is(&words[0], "decr")) {
        command_number(c, words, n, words[0].text[0] == 'i');
    } else if (is(&words[0], "touch")) {
        command_touch(c, words, n);
    } else if (is(&words[0], "flush_all")) {
        command_flush(c, words, n);
    } else if (is(&words[0], "version")) {
        reply_text(c, "VERSION " HOTCACHE_VERSION);
    } else if (is(&words[0], "stats")) {
        if (!statistics(c, n > 1 ? words[1].text : "", n > 1 ? words[1].len : 0))
            reply_text(c, "ERROR");
    } else if (is(&words[0], "verbosity")) {
        c->quiet = says_noreply(words, n);
        int64_t level;
        bool fine = n == 1 || c->quiet || number(&words[1], 0, UINT32_MAX, &level);
        reply_text(c, n == 1 || n > 3 ? "ERROR" : fine ? "OK" : bad_line);
    } else if (is(&words[0], "quit")) {
        c->ended = true;
    } else {
        reply_text(c, "ERROR");
    }
}

/* The next command line. False when more input is needed. */
static bool advance_command(struct connection *c)
{
    char *line = c->input + c->input_start;
    size_t there = c->input_end - c->input_start;
    char *end = memchr(line, '\n', there);
    c->quiet = false;
    struct word words[WORDS_MAX];
    if (!end) {
        if (there <= LINE_MAX_BYTES)
            return false;
        int n = split(line, there, words);
        /* Only a list of keys may be so long. It is answered while it comes in. */
        if (n > 0 && is_get(&words[0]) && begin_keys(c, words, n, false, there))
            return true;
        c->ended = !(n > 0 && is_get(&words[0]));
        c->state = SWALLOW_LINE;
        return !c->ended;
    }
    size_t len = (size_t)(end - line);
    c->input_start += len + 1;
    if (len > 0 && line[len - 1] == '\r')
        len--;
    int n = split(line, len, words);
    if (n > 0 && is_get(&words[0]))
        begin_keys(c, words, n, true, len - (size_t)(words[0].text - line));
    else
        command(c, words, n);
    return true;
}

void protocol_advance(struct connection *c)
{
    bool more = true;
    while (more && !c->ended && c->output_end - c->output_start < OUTPUT_PAUSE) {
        size_t there = c->input_end - c->input_start;
        char *end;
        switch (c->state) {
        case READ_COMMAND:
            more = there > 0 && advance_command(c);
            break;
        case READ_KEYS:
            more = advance_keys(c);
            break;
        case READ_VALUE:
            more = advance_value(c);
            break;
        case SWALLOW_VALUE:
            if (there > c->swallow)
                there = c->swallow;
            c->input_start += there;
            c->swallow -= there;
            more = c->swallow == 0;
            if (more)
                c->state = READ_COMMAND;
            break;
        case SWALLOW_LINE:
            end = memchr(c->input + c->input_start, '\n', there);
            more = end != NULL;
            c->input_start = end ? (size_t)(end - c->input) + 1 : c->input_end;
            if (end)
                c->state = READ_COMMAND;
            break;
        }
    }
}
