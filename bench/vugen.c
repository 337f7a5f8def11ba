#define _GNU_SOURCE
// vugen: a traffic generator, sink and latency probe over two DPDK virtio-user ports, in one thread on one core, so that
// it works as the two guests of a vhost-user switch. See vs-testpmd.sh.
//
// Every window is preceded and followed by a cache-line ping-pong between the generator's and the switch's CPU, and is
// tagged with the regime that shows (same cache complex, across, across sockets): on virtual machines CPUs move about,
// which changes throughput more than any switch does. Compare windows of one regime only.
//
// Ports in vdev order:
//   port 0 = A (tx), port 1 = B (rx), optional port 2 = R1, port 3 = R2 (router VM)
// usage: vugen <EAL args incl. --vdev net_virtio_user..> -- -m MODE -s SIZE [-w windows] [-t window_ms]
//        [-W warm_ms] [-r pps] [-f flows] [-b burst] [-n samples] [-g gap_us] [-L label]
// MODE: tput   A->B as fast as possible (or at -r pps)
//       bidir  A->B and B->A
//       router A->B while the same thread forwards R1->R2 (rewrites MACs, decrements TTL)
//       rtt    ping-pong A->B->A, one packet in flight
//       txonly A tx only (no rx) ; rxonly: B rx only
//       sleep  stay connected, no traffic, no polling, for windows*window_ms
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <getopt.h>
#include <signal.h>
#include <inttypes.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_cycles.h>
#include <rte_ip.h>
#include <rte_udp.h>
#include <rte_ether.h>

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <fcntl.h>
#define MAXB 256
static int size = 64, windows = 20, win_ms = 200, warm_ms = 1000, flows = 1, burst = 32, nsamp = 200000, gap_us = 0;
static int nrxd = 1024, txcheck = 0;
static double rate = 0;
static const char *mode = "tput", *label = "";
static volatile int quit;
static void onsig(int s) { (void)s; quit = 1; }

static const struct rte_ether_addr macA = {{0x02,0,0,0,0,0x0a}}, macB = {{0x02,0,0,0,0,0x0b}},
                                   macR1 = {{0x02,0,0,0,0,0x01}}, macR2 = {{0x02,0,0,0,0,0x02}};
static struct rte_mempool *rxp, *txpA, *txpB;

struct bctx { const struct rte_ether_addr *src, *dst; };

static void build(struct rte_mempool *mp, void *op, void *obj, unsigned idx) {
    struct bctx *c = op; struct rte_mbuf *m = obj; (void)mp;
    uint8_t *p = (uint8_t *)m->buf_addr + RTE_PKTMBUF_HEADROOM;
    memset(p, 0xa5, 1600);
    struct rte_ether_hdr *e = (void *)p;
    e->src_addr = *c->src; e->dst_addr = *c->dst; e->ether_type = rte_cpu_to_be_16(0x0800);
    struct rte_ipv4_hdr *ip = (void *)(e + 1);
    memset(ip, 0, sizeof *ip);
    ip->version_ihl = 0x45; ip->time_to_live = 64; ip->next_proto_id = 17;
    ip->total_length = rte_cpu_to_be_16(size - 14);
    ip->src_addr = rte_cpu_to_be_32(0x0a000001); ip->dst_addr = rte_cpu_to_be_32(0x0a000102);
    ip->hdr_checksum = rte_ipv4_cksum(ip);
    struct rte_udp_hdr *u = (void *)(ip + 1);
    u->src_port = rte_cpu_to_be_16(1000 + idx % flows); u->dst_port = rte_cpu_to_be_16(9);
    u->dgram_len = rte_cpu_to_be_16(size - 34); u->dgram_cksum = 0;
}

static void port_init(uint16_t p) {
    struct rte_eth_conf conf; memset(&conf, 0, sizeof conf);
    struct rte_eth_dev_info di; rte_eth_dev_info_get(p, &di);
    if (rte_eth_dev_configure(p, 1, 1, &conf)) rte_exit(1, "configure %u\n", p);
    uint16_t nr = nrxd, nt = nrxd; rte_eth_dev_adjust_nb_rx_tx_desc(p, &nr, &nt);
    if (rte_eth_rx_queue_setup(p, 0, nr, 0, NULL, rxp)) rte_exit(1, "rxq %u\n", p);
    if (rte_eth_tx_queue_setup(p, 0, nt, 0, NULL)) rte_exit(1, "txq %u\n", p);
    if (rte_eth_dev_start(p)) rte_exit(1, "start %u\n", p);
}

static inline struct rte_mbuf *mk(struct rte_mempool *mp) {
    struct rte_mbuf *m = rte_pktmbuf_alloc(mp);
    if (m) { m->data_len = size; m->pkt_len = size; }
    return m;
}
static inline int refill(struct rte_mempool *mp, struct rte_mbuf **b, int n) {
    if (rte_pktmbuf_alloc_bulk(mp, b, n)) return 0;
    for (int i = 0; i < n; i++) { b[i]->data_len = size; b[i]->pkt_len = size; }
    return n;
}
static void learn(uint16_t port, struct rte_mempool *mp) {
    for (int k = 0; k < 4; k++) {
        struct rte_mbuf *m = mk(mp);
        if (!m || rte_eth_tx_burst(port, 0, &m, 1) != 1) { if (m) rte_pktmbuf_free(m); }
        rte_delay_us_sleep(20000);
    }
}
static void drain(uint16_t p) {
    struct rte_mbuf *b[MAXB]; int idle = 0;
    while (idle < 2000) { int n = rte_eth_rx_burst(p, 0, b, 64); if (n) { rte_pktmbuf_free_bulk(b, n); idle = 0; } else { idle++; rte_delay_us_block(5);} }
}

struct dir { uint16_t tp, rp; struct rte_mempool *mp; struct rte_mbuf *b[MAXB]; int n, i; uint64_t tx, rx, bad, burst_try, full, rxcalls, rxempty, nomem; };

static inline void do_tx(struct dir *d) {
    if (d->n == 0) { d->n = refill(d->mp, d->b, burst); d->i = 0; if (!d->n) { d->nomem++; rte_eth_tx_burst(d->tp, 0, d->b, 0); return; } }
    int k = rte_eth_tx_burst(d->tp, 0, d->b + d->i, d->n);
    d->burst_try++; d->tx += k; d->n -= k; d->i += k; if (d->n) d->full++;
}
static inline int do_rx(struct dir *d) {
    struct rte_mbuf *r[64]; int k = rte_eth_rx_burst(d->rp, 0, r, 64);
    d->rxcalls++; if (!k) { d->rxempty++; return 0; }
    d->rx += k; if (unlikely(r[0]->pkt_len != (uint32_t)size)) d->bad++;
    rte_pktmbuf_free_bulk(r, k); return k;
}

static int cmpd(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return x < y ? -1 : x > y; }
static int cmp32(const void *a, const void *b) { uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b; return x < y ? -1 : x > y; }

// ---- placement probe: helper thread on the switch core (SCHED_FIFO) ping-pongs a cache line with us ----
static _Alignas(128) atomic_uint_fast64_t pp_flag; static _Alignas(128) atomic_int pp_on, pp_quit; static sem_t pp_sem; static double pp_ghz0; static int swcore = 0;
static double imul_ghz(uint64_t hz) { uint64_t x = 3, t0 = rte_rdtsc_precise(); for (int i = 0; i < 100000; i++) __asm__ volatile("imul $3,%0,%0" : "+r"(x)); uint64_t t1 = rte_rdtsc_precise(); return 300000.0 / ((double)(t1 - t0) / hz) / 1e9; }
static void *pp_thread(void *a) {
    uint64_t hz = *(uint64_t *)a; cpu_set_t s; CPU_ZERO(&s); CPU_SET(swcore, &s); pthread_setaffinity_np(pthread_self(), sizeof s, &s);
    struct sched_param sp = { .sched_priority = 10 }; if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &sp)) perror("SCHED_FIFO");
    for (;;) {
        while (sem_wait(&pp_sem)) ;
        if (pp_quit) return 0;
        pp_ghz0 = imul_ghz(hz);
        uint64_t e = 1; atomic_store(&pp_flag, 0); atomic_store(&pp_on, 1);
        while (atomic_load_explicit(&pp_on, memory_order_relaxed) == 1) if (atomic_load_explicit(&pp_flag, memory_order_acquire) == e) { atomic_store_explicit(&pp_flag, e + 1, memory_order_release); e += 2; }
    }
}
static double ghz1, ghz0;
static double probe(uint64_t hz) { // returns round trip ns
    ghz1 = imul_ghz(hz);
    uint64_t dl = rte_rdtsc() + hz / 10; sem_post(&pp_sem);
    while (atomic_load(&pp_on) != 1) if (rte_rdtsc() > dl) return -1;
    uint64_t e = 0, k = 0, t0 = rte_rdtsc(), end = t0 + hz / 1000, t1 = t0; // 1 ms
    while (t1 < end) {
        for (int i = 0; i < 50; i++) { atomic_store_explicit(&pp_flag, e + 1, memory_order_release); while (atomic_load_explicit(&pp_flag, memory_order_acquire) != e + 2) ; e += 2; k++; }
        t1 = rte_rdtsc();
    }
    atomic_store(&pp_on, 0); ghz0 = pp_ghz0;
    return (double)(t1 - t0) / hz * 1e9 / k;
}
// placement regimes by cache-line round trip: SMT sibling / same CCX / cross-CCX / cross-socket
static const char *RN[] = { "smt", "ccx", "xccx", "xsock", "mixed", "slow" };
static int regime(double a) { return a < 35 ? 0 : a < 160 ? 1 : a < 750 ? 2 : 3; }
static uint64_t rd_u64(const char *f, int idx) { char b[512]; int fd = open(f, O_RDONLY); if (fd < 0) return 0; int n = read(fd, b, 511); close(fd); if (n <= 0) return 0; b[n] = 0; char *p = b, *q; while (idx--) { q = strchr(p, ' '); if (!q) return 0; p = q + 1; while (*p == ' ') p++; } return strtoull(p, 0, 10); }
static uint64_t steal(void) { return rd_u64("/proc/stat", 8); }
static char schedf[128];

static uint64_t rt_fwd, rt_drop;
static inline void router(void) {
    struct rte_mbuf *r[64]; int k = rte_eth_rx_burst(2, 0, r, 64); if (!k) return;
    for (int i = 0; i < k; i++) {
        uint8_t *p = rte_pktmbuf_mtod(r[i], uint8_t *);
        memcpy(p, &macB, 6); memcpy(p + 6, &macR2, 6);
        struct rte_ipv4_hdr *ip = (void *)(p + 14);
        ip->time_to_live--; uint32_t c = (uint32_t)ip->hdr_checksum + rte_cpu_to_be_16(0x0100); ip->hdr_checksum = (uint16_t)(c + (c >> 16));
    }
    int s = rte_eth_tx_burst(3, 0, r, k); rt_fwd += s; rt_drop += k - s;
    if (s < k) rte_pktmbuf_free_bulk(r + s, k - s);
}

struct win { double rx, tx, full, empty, p0, p1, g0, g1, fwd, drop, gap; uint64_t st, rd; int reg; };
static int by_rx(const void *a, const void *b) { return cmpd(&((struct win *)a)->rx, &((struct win *)b)->rx); }
static void summary(const char *reg, struct win *v, int n) {
    if (!n) return;
    qsort(v, n, sizeof *v, by_rx); double tx = 0, f = 0, e = 0, c = 0, fw = 0, dr = 0; for (int i = 0; i < n; i++) { tx += v[i].tx; f += v[i].full; e += v[i].empty; c += v[i].p0; fw += v[i].fwd; dr += v[i].drop; }
    printf("RESULT %s mode=%s size=%d reg=%s n=%d med=%.3f min=%.3f max=%.3f Mpps gbps=%.2f tx=%.3f txfull=%.0f%% rxempty=%.0f%% c2c=%.0fns", label, mode, size, reg, n, v[n / 2].rx, v[0].rx, v[n - 1].rx, v[n / 2].rx * size * 8 / 1000, tx / n, f / n, e / n, c / n);
    if (fw > 0) printf(" rtr_fwd=%.3f rtr_drop=%.3f", fw / n, dr / n);
    printf("\n");
}
static void run_tput(int both, int rtr, int dotx, int dorx) {
    static struct dir ab, ba; ab.tp = 0; ab.rp = 1; ab.mp = txpA; ba.tp = 1; ba.rp = 0; ba.mp = txpB;
    uint64_t hz = rte_get_tsc_hz(); int maxw = 400, got = 0; struct win *W = calloc(maxw, sizeof *W); double budget = getenv("BUDGET") ? atof(getenv("BUDGET")) : 15; uint64_t tend = rte_rdtsc() + (uint64_t)(hz * budget);
    double cyc_per_pkt = rate > 0 ? hz / rate : 0; int nw = 0; double pr = 0; FILE *csv = getenv("CSV") ? fopen(getenv("CSV"), "a") : NULL;
    for (int w = -1; w < maxw && got < windows && !quit && rte_rdtsc() < tend; w++) {
        if (w >= 0) pr = probe(hz);
        struct win *x = &W[w < 0 ? 0 : w]; x->p0 = pr; x->g0 = ghz0; x->g1 = ghz1;
        struct dir sa, sb; uint64_t st = steal(), rd = rd_u64(schedf, 1), rs = 0, fw0 = 0, dr0 = 0;
        uint64_t t0 = rte_rdtsc(), settle = t0 + hz / 1000 * 5, end = 0, now = t0; double next = t0; int phase = 0;
        if (w < 0) settle = t0 + hz / 1000 * warm_ms;
        for (;;) {
            for (int it = 0; it < 16; it++) {
                if (dotx) {
                    if (rate > 0) {
                        uint64_t tn = rte_rdtsc();
                        if (tn >= next) {
                            struct rte_mbuf *m = mk(txpA);
                            if (m) { if (rte_eth_tx_burst(0, 0, &m, 1) == 1) ab.tx++; else { rte_pktmbuf_free(m); ab.full++; } ab.burst_try++; }
                            next += cyc_per_pkt; if (tn > next + hz / 100) next = tn;
                        }
                    } else do_tx(&ab);
                    if (both) do_tx(&ba);
                }
                if (rtr) router();
                if (dorx) do_rx(&ab);
                if (both) do_rx(&ba);
                else if (dotx && dorx && it == 0) { struct rte_mbuf *r[64]; int k = rte_eth_rx_burst(0, 0, r, 64); if (k) rte_pktmbuf_free_bulk(r, k); }
            }
            now = rte_rdtsc();
            if (phase == 0) { if (now >= settle) { if (w < 0) break; phase = 1; sa = ab; sb = ba; fw0 = rt_fwd; dr0 = rt_drop; st = steal(); rd = rd_u64(schedf, 1); rs = rd_u64("/proc/thread-self/schedstat", 1); t0 = rte_rdtsc(); end = t0 + hz / 1000 * win_ms; } }
            else if (now >= end) break;
        }
        if (w < 0) { if (getenv("HOOK0")) system(getenv("HOOK0")); continue; }
        double s = (double)(now - t0) / hz;
        x->rx = (ab.rx - sa.rx + (both ? ba.rx - sb.rx : 0)) / s / 1e6; x->tx = (ab.tx - sa.tx + (both ? ba.tx - sb.tx : 0)) / s / 1e6;
        if (!dorx) x->rx = x->tx; if (!dotx) x->tx = x->rx;
        x->full = (ab.burst_try - sa.burst_try) ? 100.0 * (ab.full - sa.full) / (ab.burst_try - sa.burst_try) : 0;
        x->empty = (ab.rxcalls - sa.rxcalls) ? 100.0 * (ab.rxempty - sa.rxempty) / (ab.rxcalls - sa.rxcalls) : 0;
        x->fwd = (rt_fwd - fw0) / s / 1e6; x->drop = (rt_drop - dr0) / s / 1e6;
        x->st = steal() - st; x->rd = (rd_u64(schedf, 1) - rd) / 1000; rs = (rd_u64("/proc/thread-self/schedstat", 1) - rs) / 1000; if (rs > x->rd) x->rd = rs;
        pr = probe(hz); x->p1 = pr; if (ghz0 < x->g0) x->g0 = ghz0; if (ghz1 < x->g1) x->g1 = ghz1;
        int r0 = regime(x->p0), r1 = regime(x->p1);
        x->reg = r0 == r1 ? r0 : 4; if (x->p0 < 0 || x->p1 < 0 || x->st > 2 || x->rd > 1000.0 * win_ms * 0.02 || x->g0 < 2.5 || x->g1 < 2.5) x->reg = 5;
        if (csv) { fprintf(csv, "%s,%s,%d,%d,%.4f,%.4f,%.1f,%.1f,%.0f,%.0f,%.2f,%.2f,%" PRIu64 ",%" PRIu64 ",%s\n", label, mode, size, w, x->rx, x->tx, x->full, x->empty, x->p0, x->p1, x->g0, x->g1, x->st, x->rd, RN[x->reg]); fflush(csv); }
        if (getenv("VERBOSE")) fprintf(stderr, "# w%d rx %.3f tx %.3f full %.0f%% empty %.0f%% c2c %.0f/%.0f ghz %.2f/%.2f steal %" PRIu64 " rdelay %" PRIu64 "us %s\n", w, x->rx, x->tx, x->full, x->empty, x->p0, x->p1, x->g0, x->g1, x->st, x->rd, RN[x->reg]);
        nw++; if (x->reg == 1) got++;
    }
    if (getenv("HOOK1")) system(getenv("HOOK1"));
    struct win *v = calloc(maxw, sizeof *v); 
    for (int g = 0; g < 6; g++) { int n = 0; for (int i = 0; i < nw; i++) if (W[i].reg == g) v[n++] = W[i]; summary(RN[g], v, n); }
    memcpy(v, W, nw * sizeof *v); summary("ALL", v, nw);
    if (ab.bad) printf("BAD %" PRIu64 "\n", ab.bad);
}

static void rsum(const char *reg, uint32_t *a, uint32_t *o, int n, double ns) {
    if (n < 500) return; double sum = 0; for (int i = 0; i < n; i++) sum += a[i];
    qsort(a, n, 4, cmp32); qsort(o, n, 4, cmp32);
    printf("RESULT %s mode=rtt size=%d reg=%s n=%d rtt_ns mean=%.0f min=%.0f p50=%.0f p90=%.0f p99=%.0f p99.9=%.0f max=%.0f oneway_ns p50=%.0f p99=%.0f p99.9=%.0f\n",
           label, size, reg, n, sum / n * ns, a[0] * ns, a[n / 2] * ns, a[(int)(n * .9)] * ns, a[(int)(n * .99)] * ns, a[(int)(n * .999)] * ns, a[n - 1] * ns, o[n / 2] * ns, o[(int)(n * .99)] * ns, o[(int)(n * .999)] * ns);
}
static void run_rtt(void) {
    uint64_t hz = rte_get_tsc_hz(); double ns = 1e9 / hz; uint64_t lost = 0; struct rte_mbuf *r[64]; int chunk = 2000;
    uint32_t *a[6], *o[6]; int n[6] = {0}; for (int i = 0; i < 6; i++) { a[i] = malloc(4 * (4 * nsamp + 2 * chunk)); o[i] = malloc(4 * (4 * nsamp + 2 * chunk)); }
    uint32_t *ca = malloc(4 * chunk), *co = malloc(4 * chunk); int total = 0, want = 0; uint64_t stop_at = rte_rdtsc() + hz * (getenv("BUDGET") ? atof(getenv("BUDGET")) : 15);
    while (want < nsamp && total < 4 * nsamp && !quit && lost < 500 && rte_rdtsc() < stop_at) {
        double p0 = probe(hz); rte_delay_us_block(2000); int c = -200; uint64_t st = steal();
        while (c < chunk && lost < 500) {
            struct rte_mbuf *m = mk(txpA); if (!m) { rte_eth_tx_burst(0, 0, r, 0); lost++; continue; }
            uint64_t t0 = rte_rdtsc_precise();
            if (rte_eth_tx_burst(0, 0, &m, 1) != 1) { rte_pktmbuf_free(m); lost++; continue; }
            int k; uint64_t dl = t0 + hz / 20, t1 = 0, t2 = 0;
            while (!(k = rte_eth_rx_burst(1, 0, r, 1)) && rte_rdtsc() < dl) ;
            if (!k) { lost++; drain(0); drain(1); continue; }
            t1 = rte_rdtsc_precise();
            uint8_t *p = rte_pktmbuf_mtod(r[0], uint8_t *); memcpy(p, &macA, 6); memcpy(p + 6, &macB, 6);
            if (rte_eth_tx_burst(1, 0, r, 1) != 1) { rte_pktmbuf_free(r[0]); lost++; continue; }
            while (!(k = rte_eth_rx_burst(0, 0, r, 1)) && rte_rdtsc() < dl) ;
            if (!k) { lost++; drain(0); drain(1); continue; }
            t2 = rte_rdtsc_precise(); rte_pktmbuf_free(r[0]);
            if (c >= 0) { ca[c] = t2 - t0; co[c] = t1 - t0; } c++;
            if (gap_us) rte_delay_us_block(gap_us);
        }
        if (c < chunk) break;
        uint64_t std = steal() - st; double p1 = probe(hz); int g = regime(p0) == regime(p1) ? regime(p0) : 4; if (p0 < 0 || p1 < 0 || std > 1) g = 5;
        memcpy(a[g] + n[g], ca, 4 * chunk); memcpy(o[g] + n[g], co, 4 * chunk); n[g] += chunk; total += chunk; if (g == 1) want += chunk;
    }
    uint32_t *A = malloc(4 * (4 * nsamp + 2 * chunk)), *O = malloc(4 * (4 * nsamp + 2 * chunk)); int t = 0;
    for (int g = 0; g < 6; g++) { memcpy(A + t, a[g], 4 * n[g]); memcpy(O + t, o[g], 4 * n[g]); t += n[g]; }
    for (int g = 0; g < 6; g++) rsum(RN[g], a[g], o[g], n[g], ns);
    rsum("ALL", A, O, t, ns); if (lost) printf("LOST %s %" PRIu64 "\n", label, lost);
}

int main(int argc, char **argv) {
    int r = rte_eal_init(argc, argv); if (r < 0) rte_exit(1, "eal\n"); argc -= r; argv += r;
    int c; while ((c = getopt(argc, argv, "m:s:w:t:W:r:f:b:n:g:L:q:")) != -1) switch (c) {
        case 'm': mode = optarg; break; case 's': size = atoi(optarg); break; case 'w': windows = atoi(optarg); break; case 't': win_ms = atoi(optarg); break;
        case 'W': warm_ms = atoi(optarg); break; case 'r': rate = atof(optarg); break; case 'f': flows = atoi(optarg); break; case 'b': burst = atoi(optarg); break;
        case 'n': nsamp = atoi(optarg); break; case 'g': gap_us = atoi(optarg); break; case 'L': label = optarg; break; case 'q': nrxd = atoi(optarg); break; }
    signal(SIGINT, onsig); signal(SIGTERM, onsig);
    int np = rte_eth_dev_count_avail(); int rtr = !strcmp(mode, "router");
    // small, cache-friendly pools: enough for the rings plus per-core cache
    rxp = rte_pktmbuf_pool_create("rxp", nrxd * np + 2047, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    txpA = rte_pktmbuf_pool_create("txpA", nrxd + 1023, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    txpB = rte_pktmbuf_pool_create("txpB", nrxd + 1023, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
    if (!rxp || !txpA || !txpB) rte_exit(1, "pool\n");
    struct bctx ca = { &macA, rtr ? &macR1 : &macB }, cb = { &macB, &macA };
    if (getenv("DSTR")) ca.dst = &macR1;
    rte_mempool_obj_iter(txpA, build, &ca); rte_mempool_obj_iter(txpB, build, &cb);
    for (int p = 0; p < np; p++) port_init(p);
    for (int p = 0; p < np; p++) { struct rte_eth_link l; for (int k = 0; k < 100; k++) { rte_eth_link_get_nowait(p, &l); if (l.link_status) break; rte_delay_us_sleep(50000); } }
    rte_delay_us_sleep(500000);
    if (np > 1 && strcmp(mode, "sleep")) { learn(1, txpB); learn(0, txpA); learn(1, txpB); for (int p = 0; p < np; p++) drain(p); }
    uint64_t hz = rte_get_tsc_hz(); sem_init(&pp_sem, 0, 0); pthread_t pt; pthread_create(&pt, 0, pp_thread, &hz);
    if (getenv("SUTTID")) snprintf(schedf, sizeof schedf, "/proc/%s/schedstat", getenv("SUTTID")); else strcpy(schedf, "/dev/null");
    if (!strcmp(mode, "tput")) run_tput(0, 0, 1, 1);
    else if (!strcmp(mode, "bidir")) run_tput(1, 0, 1, 1);
    else if (rtr) run_tput(0, 1, 1, 1);
    else if (!strcmp(mode, "txonly")) run_tput(0, 0, 1, 0);
    else if (!strcmp(mode, "rxonly")) run_tput(0, 0, 0, 1);
    else if (!strcmp(mode, "rtt")) run_rtt();
    else if (!strcmp(mode, "sleep")) { printf("SLEEPING\n"); fflush(stdout); for (int i = 0; i < windows * win_ms / 10 && !quit; i++) usleep(10000); }
    fflush(stdout); pp_quit = 1; sem_post(&pp_sem); pthread_join(pt, 0);
    for (int p = 0; p < np; p++) { rte_eth_dev_stop(p); rte_eth_dev_close(p); }
    rte_eal_cleanup();
    return 0;
}
