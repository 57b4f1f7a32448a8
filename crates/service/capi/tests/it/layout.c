/* The layout that crates/service/capi/src/layout.rs asserts, and constants. Compiled as C99 and as C++. */
#include <hps.h>
#include <superhue.h>
#include <stddef.h>
#define SAME(name, condition) typedef char name[(condition) ? 1 : -1]
SAME(page, sizeof(struct hps_page) == 16 && offsetof(struct hps_page, flags) == 12);
SAME(region, sizeof(struct hps_region) == 48 && offsetof(struct hps_region, suggestion) == 40);
SAME(options, sizeof(struct hps_options) == 40 && offsetof(struct hps_options, timeout_ms) == 36);
SAME(outcome, sizeof(struct hps_outcome) == 48);
SAME(statistics, sizeof(struct hps_statistics) == 40);
SAME(placement, sizeof(struct superhue_color_placement) == 64 && offsetof(struct superhue_color_placement, edges) == 56);
SAME(verdict, sizeof(struct superhue_color_verdict) == 72 && offsetof(struct superhue_color_verdict, commonest) == 64);
SAME(decisions, HPS_LEAVE == 0 && HPS_COLLAPSE == 1 && HPS_COMPACT == 2);
int main(void)
{
    struct hps_options options = HPS_OPTIONS_INIT;
    return hps_enable_track(&options) == 0 || options.size != sizeof options;
}
