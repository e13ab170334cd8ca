/* Makes and reads what the conformance vectors have, by the client in C: one order a line, one answer a line.
 *
 *   pack KIND LANE BODY            the frame's bytes
 *   unpack BYTES                   KIND LANE BODY, or "refused"
 *   layout JSON                    BYTES OFFSET ... of a layout, or "refused"
 *   prove TOKEN BINDING KNOWN      MAC of the client, MAC of the server
 *   dial PLACE SECONDS             "connected", or the error
 */
#define _POSIX_C_SOURCE 200809L
#define SEEDBED_IMPLEMENTATION
#include "seedbed.h"

static uint8_t one[1 << 16], two[1 << 16];

static size_t read_hex(const char *text, uint8_t *bytes) { /* "-" is nothing */
    size_t count = 0;
    unsigned byte;
    for (; *text != '-' && sscanf(text, "%2x", &byte) == 1; text += 2) bytes[count++] = (uint8_t)byte;
    return count;
}

static void print_hex(const uint8_t *bytes, size_t count) {
    while (count--) printf("%02x", *bytes++);
}

int main(void) {
    static char line[1 << 18], word[3][1 << 17];
    static struct seedbed run;
    while (fgets(line, sizeof line, stdin)) {
        uint8_t mac[32];
        size_t bound, known;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "pack %131071s %131071s %131071s", word[0], word[1], word[2]) == 3) {
            size_t count = read_hex(word[2], one);
            sb_pack(two, atoi(word[0]), (uint32_t)atoi(word[1]), count);
            print_hex(two, SB_HEADER);
            print_hex(one, count);
        } else if (sscanf(line, "unpack %131071s", word[0]) == 1) {
            int kind;
            uint32_t lane;
            uint64_t length;
            size_t count = read_hex(word[0], one);
            if (count < SB_HEADER || sb_unpack(&run, one, &kind, &lane, &length) || length != count - SB_HEADER) {
                printf("refused");
            } else {
                printf("%d %u ", kind, (unsigned)lane);
                print_hex(one + SB_HEADER, (size_t)length);
                if (!length) printf("-");
            }
        } else if (!strncmp(line, "layout ", 7)) {
            static sb_layout layout;
            int i;
            if (sb_read_layout(&layout, line + 7)) {
                printf("refused");
            } else {
                printf("%llu", (unsigned long long)layout.nbytes);
                for (i = 0; i < layout.count; i++) printf(" %llu", (unsigned long long)layout.offset[i]);
            }
        } else if (sscanf(line, "prove %131071s %131071s %131071s", word[0], word[1], word[2]) == 3) {
            bound = read_hex(word[1], one), known = read_hex(word[2], two);
            sb_mac(word[0], "client", one, bound, two, known, mac);
            print_hex(mac, 32), printf(" ");
            sb_mac(word[0], "server", one, bound, two, known, mac);
            print_hex(mac, 32);
        } else if (sscanf(line, "dial %131071s %131071s", word[0], word[1]) == 2) {
            run.socket = -1;
            printf("%s", sb_dial(&run, word[0], atof(word[1])) ? run.error : "connected");
            if (run.socket >= 0) close(run.socket);
        }
        printf("\n");
    }
    return 0;
}
