/* A client of Seedbed in one header: observations up, actions down (docs/wire.md, protocol 2).
 *
 * In one file:   #define SEEDBED_IMPLEMENTATION
 *                #include "seedbed.h"
 * With TLS:      cc -DSEEDBED_TLS world.c -lssl -lcrypto     (OpenSSL 3; SIGPIPE is then ignored)
 *
 *   seedbed_options options = {.address = "socket:unix:/tmp/run.sock", .join = "TOKEN", .envs = 2};
 *   char error[SEEDBED_ERROR];
 *   seedbed *run = seedbed_connect(&options, error);
 *   for (int lane = 0; lane < seedbed_lanes(run); lane++) { ... fill the first step; seedbed_send(run, lane); }
 *   int lane;
 *   while ((lane = seedbed_receive(run)) >= 0) {
 *       const int32_t *action = seedbed_action(run, lane, "int32", 1);
 *       ... step the lane's environments, fill observation, reward and flags ...
 *       seedbed_send(run, lane);
 *   }
 *   puts(seedbed_error(run));  seedbed_close(run, "");
 *
 * A client is used by one thread. Little-endian machines with POSIX sockets; needs nothing but the C library.
 */
#ifndef SEEDBED_H
#define SEEDBED_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define SEEDBED_PROTOCOL 2
#define SEEDBED_ERROR 512 /* bytes of an error's text, with the closing zero */

typedef struct seedbed seedbed;
typedef struct {
    const char *address; /* HOST:PORT or unix:PATH, with or without socket: in front */
    const char *join;    /* TOKEN or FINGERPRINT.TOKEN, as the server printed it; NULL: the variable SEEDBED_JOIN */
    const char *spec;    /* spec of the world as JSON; NULL: the one that the server needs */
    int envs;            /* environments: 1 or an even number for a learner; 0: as many as its own actors have */
    int insecure;        /* plain text over the network, where the server has --insecure */
    double timeout;      /* seconds to wait for the server to appear; 0: ten */
} seedbed_options;

/* Joins; NULL if that fails, with the reason in error. */
seedbed *seedbed_connect(const seedbed_options *options, char error[SEEDBED_ERROR]);
void seedbed_close(seedbed *run, const char *reason);

int seedbed_lanes(const seedbed *run); /* lanes are sent and received one by one, and do not wait for each other */
int seedbed_rows(const seedbed *run);  /* environments of each lane */
int64_t seedbed_seed(const seedbed *run, int lane); /* for the environments of a lane */

/* The step to fill, rows one after the other. Leaf number FIELD of the observation, in the order of sorted keys;
 * NULL if it is not of this dtype ("float32", "uint8", ...) with this many numbers an environment. */
void *seedbed_observation(seedbed *run, int lane, int field, const char *dtype, size_t numbers);
float *seedbed_reward(seedbed *run, int lane);
uint8_t *seedbed_terminated(seedbed *run, int lane); /* flags are 0 or 1; see docs/wire.md for the order of steps */
uint8_t *seedbed_truncated(seedbed *run, int lane);
uint8_t *seedbed_first(seedbed *run, int lane);

int seedbed_send(seedbed *run, int lane); /* 0, or -1 with seedbed_error */
int seedbed_receive(seedbed *run);        /* waits; the lane whose actions have come, or -1 with seedbed_error */
/* The actions of a lane, as they stand until its next receive; NULL as above. */
const void *seedbed_action(const seedbed *run, int lane, const char *dtype, size_t numbers);
const char *seedbed_error(const seedbed *run);
int seedbed_over(const seedbed *run); /* whether the run is over, so that there is no need to come again */

#ifdef __cplusplus
}
#endif
#endif

#ifdef SEEDBED_IMPLEMENTATION
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef SEEDBED_TLS
#include <openssl/ssl.h>
#include <signal.h>
#endif

enum { SB_ASK = 1, SB_ANSWER, SB_REFUSED, SB_OPENED, SB_STEP, SB_REPLY, SB_CLOSED };
enum { SB_CHALLENGE = 8, SB_PROOF, SB_ADMITTED };
enum { SB_HEADER = 16, SB_QUESTION = 1 << 20, SB_REASON = 2048, SB_LANES = 64, SB_FIELDS = 256 };
#define SB_MESSAGE ((uint64_t)256 << 20)

typedef struct {
    int count;
    char dtype[SB_FIELDS][12];
    uint64_t bytes[SB_FIELDS], offset[SB_FIELDS], nbytes; /* of each array; its first byte; of the message */
    int itemsize[SB_FIELDS];
} sb_layout;

typedef struct {
    sb_layout up, down;
    uint8_t *step, *reply;
    int owed;
    int64_t seed;
} sb_lane;

struct seedbed {
    int socket, lanes, rows, over;
    sb_lane *lane;
    char error[SEEDBED_ERROR];
#ifdef SEEDBED_TLS
    SSL_CTX *context;
    SSL *ssl;
#endif
};

static int sb_fail(seedbed *run, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->error, sizeof run->error, format, arguments);
    va_end(arguments);
    return -1;
}

/* -- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) -- */
typedef struct {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
} sb_sha;

static uint32_t sb_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static const uint32_t sb_k[64] = { /* of the cube roots of the first primes */
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};
static const uint32_t sb_h[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static void sb_sha_block(sb_sha *sha) {
    uint32_t w[64], s[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)sha->block[4 * i] << 24 | (uint32_t)sha->block[4 * i + 1] << 16 |
               (uint32_t)sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (sb_rotate(a, 7) ^ sb_rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (sb_rotate(b, 17) ^ sb_rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, sha->state, sizeof s);
    for (i = 0; i < 64; i++) {
        uint32_t one = s[7] + (sb_rotate(s[4], 6) ^ sb_rotate(s[4], 11) ^ sb_rotate(s[4], 25)) +
                       ((s[4] & s[5]) ^ (~s[4] & s[6])) + sb_k[i] + w[i];
        uint32_t two = (sb_rotate(s[0], 2) ^ sb_rotate(s[0], 13) ^ sb_rotate(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (i = 0; i < 8; i++) sha->state[i] += s[i];
}
static void sb_sha_begin(sb_sha *sha) {
    memcpy(sha->state, sb_h, sizeof sha->state);
    sha->length = 0;
}
static void sb_sha_add(sb_sha *sha, const void *data, size_t size) {
    const uint8_t *bytes = (const uint8_t *)data;
    while (size--) {
        sha->block[sha->length++ % 64] = *bytes++;
        if (sha->length % 64 == 0) sb_sha_block(sha);
    }
}
static void sb_sha_end(sb_sha *sha, uint8_t digest[32]) {
    uint64_t bits = 8 * sha->length;
    uint8_t pad = 0x80, length[8];
    int i;
    sb_sha_add(sha, &pad, 1);
    for (pad = 0; sha->length % 64 != 56;) sb_sha_add(sha, &pad, 1);
    for (i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sb_sha_add(sha, length, 8);
    for (i = 0; i < 32; i++) digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}
static void sb_sha_key(sb_sha *sha, const uint8_t key[64], int with) {
    int i;
    sb_sha_begin(sha);
    for (i = 0; i < 64; i++) {
        uint8_t byte = (uint8_t)(key[i] ^ with);
        sb_sha_add(sha, &byte, 1);
    }
}
/* HMAC-SHA-256 of "seedbed|SIDE|BINDING|KNOWN", with the token as key, which is cut into one by SHA-256 if long. */
static void sb_mac(const char *token, const char *side, const uint8_t *binding, size_t bound, const uint8_t *known,
                   size_t size, uint8_t digest[32]) {
    uint8_t key[64] = {0};
    sb_sha sha;
    sb_sha_begin(&sha);
    sb_sha_add(&sha, token, strlen(token));
    if (strlen(token) > sizeof key) sb_sha_end(&sha, key);
    else memcpy(key, token, strlen(token));
    sb_sha_key(&sha, key, 0x36);
    sb_sha_add(&sha, "seedbed|", 8);
    sb_sha_add(&sha, side, strlen(side));
    sb_sha_add(&sha, "|", 1);
    sb_sha_add(&sha, binding, bound);
    sb_sha_add(&sha, "|", 1);
    sb_sha_add(&sha, known, size);
    sb_sha_end(&sha, digest);
    sb_sha_key(&sha, key, 0x5c);
    sb_sha_add(&sha, digest, 32);
    sb_sha_end(&sha, digest);
}

/* -- JSON: values are found and skipped where they stand -- */
static const char *sb_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *sb_skip(const char *at) { /* the end of a value, or NULL */
    int depth = 0;
    for (at = sb_space(at);; at++) {
        if (*at == '\0') return NULL;
        if (*at == '"') {
            for (at++; *at != '"'; at++) {
                if (*at == '\\') at++;
                if (*at == '\0') return NULL;
            }
        } else if (*at == '{' || *at == '[') depth++;
        else if (*at == '}' || *at == ']') depth--;
        else if (depth == 0) return at + strcspn(at, ",]} \t\r\n");
        if (depth <= 0) return depth ? NULL : at + 1;
    }
}
static const char *sb_entry(const char *object, const char *name) { /* the value of a key, or NULL */
    const char *at = sb_space(object);
    size_t size = strlen(name);
    if (*at != '{') return NULL;
    for (at = sb_space(at + 1); *at == '"'; at = sb_space(at + 1)) {
        const char *key = at + 1;
        if (!(at = sb_skip(at)) || *(at = sb_space(at)) != ':') return NULL;
        if (!strncmp(key, name, size) && key[size] == '"') return sb_space(at + 1);
        if (!(at = sb_skip(at + 1)) || *(at = sb_space(at)) != ',') return NULL;
    }
    return NULL;
}
static const char *sb_item(const char *at) { /* the next item of an array, from its bracket or the end of one */
    if (!at || (*(at = sb_space(at)) != '[' && *at != ',')) return NULL;
    at = sb_space(at + 1);
    return *at == ']' ? NULL : at;
}

/* -- layouts -- */
static int sb_itemsize(const char *dtype) {
    static const struct { const char *name; int size; } known[] = {
        {"bool", 1},    {"int8", 1},   {"uint8", 1},  {"int16", 2},   {"uint16", 2},    {"float16", 2},    {"int32", 4},
        {"uint32", 4},  {"float32", 4}, {"int64", 8}, {"uint64", 8}, {"float64", 8}, {"complex64", 8},
        {"complex128", 16}};
    size_t i;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, dtype)) return known[i].size;
    return 0;
}
static int sb_read_layout(sb_layout *layout, const char *json) { /* [[[SIZE, ...], "DTYPE"], ...] */
    const char *field, *size, *name;
    memset(layout, 0, sizeof *layout);
    if (!json || *sb_space(json) != '[') return -1;
    for (field = sb_item(json); field; field = sb_item(sb_skip(field))) {
        int number = layout->count;
        uint64_t bytes;
        size_t length;
        if (number == SB_FIELDS || !sb_skip(field) || !(size = sb_item(field)) || !sb_skip(size)) return -1;
        if (!(name = sb_item(sb_skip(size))) || *name != '"') return -1;
        length = strcspn(name + 1, "\"");
        if (length >= sizeof *layout->dtype) return -1;
        memcpy(layout->dtype[number], name + 1, length);
        if (!(bytes = (uint64_t)(layout->itemsize[number] = sb_itemsize(layout->dtype[number])))) return -1;
        for (size = sb_item(size); size; size = sb_item(sb_skip(size))) {
            char *end;
            unsigned long long factor = strtoull(size, &end, 10);
            if (end == size || *size == '-' || factor > SB_MESSAGE || (bytes *= factor) > SB_MESSAGE) return -1;
        }
        layout->bytes[number] = bytes;
        layout->offset[number] = layout->nbytes;
        if ((layout->nbytes += (bytes + 63) / 64 * 64) > SB_MESSAGE) return -1;
        layout->count++;
    }
    return 0;
}
static int sb_read_terms(seedbed *run, const char *json) { /* {"lanes": [{"up": LAYOUT, "down": LAYOUT}, ...]} */
    const char *lane = sb_entry(json, "lanes");
    int number = 0, field;
    if (!lane || *lane != '[') return -1;
    for (lane = sb_item(lane); lane; lane = sb_item(sb_skip(lane))) {
        sb_lane *made = run->lane + number;
        if (number++ == run->lanes || !sb_skip(lane)) return -1;
        if (sb_read_layout(&made->up, sb_entry(lane, "up")) || sb_read_layout(&made->down, sb_entry(lane, "down")))
            return -1;
        field = made->up.count - 4;
        if (made->step || field < 1 || made->down.count != 1 || strcmp(made->up.dtype[field], "float32")) return -1;
        if (made->up.bytes[field] != 4 * (uint64_t)run->rows) return -1;
        while (++field < made->up.count)
            if (made->up.bytes[field] != (uint64_t)run->rows || made->up.itemsize[field] != 1) return -1;
        made->step = (uint8_t *)calloc(1, made->up.nbytes + 1);
        made->reply = (uint8_t *)calloc(1, made->down.nbytes + 1);
        if (!made->step || !made->reply) return -1;
    }
    return number == run->lanes ? 0 : -1;
}

/* -- bytes -- */
static int sb_move(seedbed *run, void *data, size_t size, int writes) {
    char *bytes = (char *)data;
    while (size) {
        size_t most = size > 1 << 30 ? 1 << 30 : size;
        ssize_t moved;
        errno = 0; /* OpenSSL may leave an old one */
#ifdef SEEDBED_TLS
        if (run->ssl) moved = writes ? SSL_write(run->ssl, bytes, (int)most) : SSL_read(run->ssl, bytes, (int)most);
        else
#endif
            moved = writes ? send(run->socket, bytes, most, MSG_NOSIGNAL) : recv(run->socket, bytes, most, 0);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0) return sb_fail(run, "the server is gone");
        bytes += moved;
        size -= (size_t)moved;
    }
    return 0;
}
static int sb_write(seedbed *run, const void *at, size_t size) { return sb_move(run, (void *)(uintptr_t)at, size, 1); }
static int sb_read(seedbed *run, void *data, size_t size) { return sb_move(run, data, size, 0); }

/* -- frames -- */
static void sb_pack(uint8_t header[SB_HEADER], int kind, uint32_t lane, uint64_t length) {
    header[0] = 'S', header[1] = 'd', header[2] = SEEDBED_PROTOCOL, header[3] = (uint8_t)kind;
    memcpy(header + 4, &lane, 4);
    memcpy(header + 8, &length, 8);
}
static int sb_unpack(seedbed *run, const uint8_t header[SB_HEADER], int *kind, uint32_t *lane, uint64_t *length) {
    if (header[0] != 'S' || header[1] != 'd') return sb_fail(run, "the other side is no Seedbed one");
    if (header[2] != SEEDBED_PROTOCOL)
        return sb_fail(run, "the other side speaks protocol %d, this one %d", header[2], SEEDBED_PROTOCOL);
    *kind = header[3];
    memcpy(lane, header + 4, 4);
    memcpy(length, header + 8, 8);
    return *lane < SB_LANES ? 0 : sb_fail(run, "a frame for lane %u", (unsigned)*lane);
}
static int sb_say(seedbed *run, int kind, int lane, const void *body, uint64_t length) {
    uint8_t header[SB_HEADER];
    sb_pack(header, kind, (uint32_t)lane, length);
    return sb_write(run, header, SB_HEADER) || sb_write(run, body, (size_t)length) ? -1 : 0;
}
/* Reads the next frame's header; an end of the conversation is an error with the server's reason. */
static int sb_hear(seedbed *run, int *kind, uint32_t *lane, uint64_t *length) {
    uint8_t header[SB_HEADER];
    char reason[SB_REASON + 1];
    if (sb_read(run, header, SB_HEADER) || sb_unpack(run, header, kind, lane, length)) return -1;
    if (*kind != SB_REFUSED && *kind != SB_CLOSED) return 0;
    if (*length > SB_REASON || sb_read(run, reason, (size_t)*length)) return sb_fail(run, "closed by the server");
    reason[*length] = '\0';
    run->over = *kind == SB_CLOSED && !strcmp(reason, "the run is over");
    return sb_fail(run, "%s", reason);
}
static int sb_expect(seedbed *run, int kind, void *body, uint64_t length) {
    int found;
    uint32_t lane = 0;
    uint64_t size;
    if (sb_hear(run, &found, &lane, &size)) return -1;
    if (found != kind || size != length) return sb_fail(run, "a frame of kind %d in place of %d", found, kind);
    return sb_read(run, body, (size_t)length);
}
/* Asks, and returns the answer, to be freed; OPENED, which may come before it, is read into the lanes. */
static char *sb_ask(seedbed *run, const char *question) {
    int kind = 0;
    uint32_t lane = 0;
    uint64_t length = 0;
    char *body;
    if (sb_say(run, SB_ASK, 0, question, strlen(question))) return NULL;
    for (;;) {
        if (sb_hear(run, &kind, &lane, &length)) return NULL;
        if ((kind != SB_ANSWER && kind != SB_OPENED) || length > SB_QUESTION)
            return sb_fail(run, "a frame of kind %d out of turn", kind), (char *)NULL;
        if (!(body = (char *)calloc(1, (size_t)length + 1)) || sb_read(run, body, (size_t)length))
            return free(body), (char *)NULL;
        if (kind == SB_ANSWER) return body;
        kind = sb_read_terms(run, body);
        free(body);
        if (kind) return sb_fail(run, "layouts that this client does not know"), (char *)NULL;
    }
}

/* -- joining -- */
/* A connected socket, or -1 with errno. Of the seconds left it waits for 3, so that other addresses have a turn. */
static int sb_try(int family, const void *address, size_t size, double *left) {
    int made = socket(family, SOCK_STREAM, 0), yes = 1, error = 0;
    double most = *left < 0 ? 0 : *left < 3 ? *left : 3;
    struct pollfd ready = {made, POLLOUT, 0};
    socklen_t length = sizeof error;
    if (made < 0) return -1;
    fcntl(made, F_SETFL, O_NONBLOCK);
    if (connect(made, (const struct sockaddr *)address, (socklen_t)size)) error = errno;
    if (error == EINPROGRESS && poll(&ready, 1, (int)(1000 * most)) == 1)
        getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &length);
    else if (error == EINPROGRESS) *left -= most, error = ETIMEDOUT;
    fcntl(made, F_SETFL, 0);
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(made, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    if (error) close(made), errno = error;
    return error ? -1 : made;
}
static int sb_dial(seedbed *run, const char *place, double seconds) {
    const char *colon = strrchr(place, ':'), *begin = place + (*place == '[');
    size_t length = colon ? (size_t)(colon - begin) - (*place == '[') : 256;
    struct timespec pause = {0, 100000000};
    struct sockaddr_un file;
    struct addrinfo hints, *found, *each;
    char host[256];
    int unknown = 0, error = 0;
    memset(&file, 0, sizeof file), memset(&hints, 0, sizeof hints);
    file.sun_family = AF_UNIX;
    hints.ai_socktype = SOCK_STREAM;
    if (length >= sizeof host || strlen(place) >= sizeof file.sun_path) return sb_fail(run, "no address: %s", place);
    memcpy(host, begin, length);
    host[length] = '\0';
    strcpy(file.sun_path, place + (strncmp(place, "unix:", 5) ? 0 : 5));
    for (;; seconds -= 0.1, nanosleep(&pause, NULL)) {
        if (!strncmp(place, "unix:", 5)) {
            run->socket = sb_try(AF_UNIX, &file, sizeof file, &seconds), error = errno;
        } else if (!(unknown = getaddrinfo(host, colon + 1, &hints, &found))) {
            for (each = found; each && run->socket < 0; each = each->ai_next)
                run->socket = sb_try(each->ai_family, each->ai_addr, each->ai_addrlen, &seconds), error = errno;
            freeaddrinfo(found);
        } else if (unknown == EAI_SYSTEM) unknown = 0, error = errno;
        if (run->socket >= 0) return 0;
        if (seconds <= 0)
            return sb_fail(run, "nothing listens at %s: %s", place, unknown ? gai_strerror(unknown) : strerror(error));
    }
}
static int sb_loopback(const char *place) {
    return !strncmp(place, "127.", 4) || !strncmp(place, "localhost:", 10) || !strncmp(place, "[::1]:", 6);
}
/* Encrypts, and compares the certificate's SHA-256 with the fingerprint (64 digits, or none), which it returns. */
static int sb_encrypt(seedbed *run, const char *fingerprint, size_t digits, uint8_t binding[32]) {
#ifdef SEEDBED_TLS
    X509 *shown = NULL;
    unsigned size = 0;
    char found[65];
    int i;
    signal(SIGPIPE, SIG_IGN);
    run->context = SSL_CTX_new(TLS_client_method());
    if (run->context && SSL_CTX_set_min_proto_version(run->context, TLS1_3_VERSION)) run->ssl = SSL_new(run->context);
    if (!run->ssl || !SSL_set_fd(run->ssl, run->socket) || SSL_connect(run->ssl) != 1)
        return sb_fail(run, "the server does not speak TLS 1.3: is it run with --insecure?");
    if ((shown = SSL_get1_peer_certificate(run->ssl))) X509_digest(shown, EVP_sha256(), binding, &size);
    X509_free(shown);
    if (size != 32) return sb_fail(run, "the server shows no certificate");
    for (i = 0; i < 32; i++) snprintf(found + 2 * i, 3, "%02x", binding[i]);
    if (digits && (digits != 64 || memcmp(found, fingerprint, 64)))
        return sb_fail(run, "the certificate is another one (%.16s...): copy the run's line again", found);
    return 0;
#else
    (void)fingerprint, (void)digits, (void)binding;
    return sb_fail(run, "this address needs TLS: compile with -DSEEDBED_TLS and link -lssl -lcrypto");
#endif
}
static int sb_prove(seedbed *run, const char *token, const uint8_t *binding, size_t bound) {
    uint8_t proof[88], wanted[32], given[32], differs = 0;
    FILE *random;
    int i = 0;
    if (sb_expect(run, SB_CHALLENGE, proof, 40)) return -1;
    if ((random = fopen("/dev/urandom", "rb"))) i = fread(proof + 40, 1, 16, random) == 16, fclose(random);
    if (!i) return sb_fail(run, "no random numbers");
    sb_mac(token, "client", binding, bound, proof, 56, proof + 56);
    if (sb_say(run, SB_PROOF, 0, proof, sizeof proof) || sb_expect(run, SB_ADMITTED, given, 32)) return -1;
    sb_mac(token, "server", binding, bound, proof, 56, wanted);
    for (i = 0; i < 32; i++) differs |= (uint8_t)(wanted[i] ^ given[i]);
    return differs ? sb_fail(run, "the server does not know the token: somebody in between, or another run") : 0;
}
static int sb_join(seedbed *run, const seedbed_options *options) {
    const char *place = options->address ? options->address : "", *join = options->join, *token, *seed, *spec;
    char question[512], envs[16], *answer, *ready;
    uint8_t binding[32] = {0};
    size_t digits, size;
    int local, encrypted;
    if (!strncmp(place, "socket:", 7)) place += 7;
    if (!join) join = getenv("SEEDBED_JOIN");
    if (!join || strlen(join) > 256 || strcspn(join, "\"\\ \t\r\n") != strlen(join))
        return sb_fail(run, "no token: copy what the server printed behind --join");
    token = strrchr(join, '.') ? strrchr(join, '.') + 1 : join;
    digits = token == join ? 0 : (size_t)(token - join) - 1;
    local = !strncmp(place, "unix:", 5);
    encrypted = !local && (digits || (!sb_loopback(place) && !options->insecure));
    if (sb_dial(run, place, options->timeout > 0 ? options->timeout : 10)) return -1;
    if (encrypted && sb_encrypt(run, join, digits, binding)) return -1;
    if (!local && sb_prove(run, token, binding, encrypted ? 32 : 0)) return -1;
    snprintf(envs, sizeof envs, options->envs ? "%d" : "null", options->envs);
    snprintf(question, sizeof question, "{\"kind\": \"join\", \"protocol\": %d, \"token\": \"%s\", \"envs\": %s}",
             SEEDBED_PROTOCOL, local ? token : "", envs);
    if (!(answer = sb_ask(run, question))) return -1;
    if (sb_entry(answer, "policy")) {
        free(answer);
        return sb_fail(run, "this learner has actors run the policy: train with --arch seed");
    }
    seed = sb_entry(answer, "rows");
    run->rows = seed ? atoi(seed) : 0;
    run->lane = (sb_lane *)calloc(SB_LANES, sizeof *run->lane);
    if (!run->lane || run->rows < 1) { free(answer); return sb_fail(run, "an answer without rows"); }
    seed = sb_entry(answer, "seeds");
    for (seed = seed ? sb_item(seed) : NULL; seed && run->lanes < SB_LANES; seed = sb_item(sb_skip(seed)))
        run->lane[run->lanes++].seed = strtoll(seed, NULL, 10);
    spec = options->spec ? options->spec : sb_entry(answer, "spec");
    size = !spec ? 0 : options->spec ? strlen(spec) : sb_skip(spec) ? (size_t)(sb_skip(spec) - spec) : 0;
    ready = (char *)malloc(size + 64);
    if (size && ready) snprintf(ready, size + 64, "{\"kind\": \"ready\", \"spec\": %.*s}", (int)size, spec);
    free(answer);
    answer = size && ready ? sb_ask(run, ready) : NULL;
    free(ready);
    if (!answer) return size ? -1 : sb_fail(run, "the server does not say what it needs: give a spec");
    free(answer);
    return run->lanes && run->lane->step ? 0 : sb_fail(run, "the server has opened no lane");
}

seedbed *seedbed_connect(const seedbed_options *options, char error[SEEDBED_ERROR]) {
    seedbed *run = (seedbed *)calloc(1, sizeof *run);
    if (!run) { snprintf(error, SEEDBED_ERROR, "out of memory"); return NULL; }
    run->socket = -1;
    if (!sb_join(run, options)) return run;
    memcpy(error, run->error, SEEDBED_ERROR);
    seedbed_close(run, "");
    return NULL;
}

void seedbed_close(seedbed *run, const char *reason) {
    int lane;
    if (!run) return;
    if (run->socket >= 0) {
        if (!*run->error) sb_say(run, SB_CLOSED, 0, reason, strnlen(reason, SB_REASON));
#ifdef SEEDBED_TLS
        SSL_free(run->ssl);
        SSL_CTX_free(run->context);
#endif
        close(run->socket);
    }
    for (lane = 0; run->lane && lane < SB_LANES; lane++) free(run->lane[lane].step), free(run->lane[lane].reply);
    free(run->lane);
    free(run);
}

/* -- steps -- */
int seedbed_lanes(const seedbed *run) { return run->lanes; }
int seedbed_rows(const seedbed *run) { return run->rows; }
int64_t seedbed_seed(const seedbed *run, int lane) { return run->lane[lane].seed; }
const char *seedbed_error(const seedbed *run) { return run->error; }
int seedbed_over(const seedbed *run) { return run->over; }

static uint8_t *sb_last(seedbed *run, int lane, int before) { /* an array of the step, counted from its end */
    const sb_layout *up = &run->lane[lane].up;
    return run->lane[lane].step + up->offset[up->count - before];
}
float *seedbed_reward(seedbed *run, int lane) { return (float *)(void *)sb_last(run, lane, 4); }
uint8_t *seedbed_terminated(seedbed *run, int lane) { return sb_last(run, lane, 3); }
uint8_t *seedbed_truncated(seedbed *run, int lane) { return sb_last(run, lane, 2); }
uint8_t *seedbed_first(seedbed *run, int lane) { return sb_last(run, lane, 1); }

static int sb_is(const seedbed *run, const sb_layout *layout, int field, const char *dtype, size_t numbers) {
    return field >= 0 && field < layout->count && !strcmp(layout->dtype[field], dtype) &&
           layout->bytes[field] == (uint64_t)numbers * (uint64_t)layout->itemsize[field] * (uint64_t)run->rows;
}
void *seedbed_observation(seedbed *run, int lane, int field, const char *dtype, size_t numbers) {
    const sb_layout *up = &run->lane[lane].up;
    if (field >= up->count - 4 || !sb_is(run, up, field, dtype, numbers)) return NULL;
    return run->lane[lane].step + up->offset[field];
}
const void *seedbed_action(const seedbed *run, int lane, const char *dtype, size_t numbers) {
    return sb_is(run, &run->lane[lane].down, 0, dtype, numbers) ? run->lane[lane].reply : NULL;
}
int seedbed_send(seedbed *run, int lane) {
    if (*run->error) return -1;
    if (lane < 0 || lane >= run->lanes || run->lane[lane].owed)
        return sb_fail(run, "lane %d does not exist, or its actions have not been received", lane);
    run->lane[lane].owed = 1;
    return sb_say(run, SB_STEP, lane, run->lane[lane].step, run->lane[lane].up.nbytes);
}
int seedbed_receive(seedbed *run) {
    int kind = 0;
    uint32_t lane = 0;
    uint64_t length = 0;
    if (*run->error || sb_hear(run, &kind, &lane, &length)) return -1;
    if (kind != SB_REPLY || lane >= (uint32_t)run->lanes || !run->lane[lane].owed ||
        length != run->lane[lane].down.nbytes)
        return sb_fail(run, "a frame of kind %d for lane %u out of turn", kind, (unsigned)lane);
    if (sb_read(run, run->lane[lane].reply, (size_t)length)) return -1;
    run->lane[lane].owed = 0;
    return (int)lane;
}
#endif
