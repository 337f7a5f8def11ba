/* The part of libfabric that is used, as functions: in the header most of them are inline calls through
 * tables, and some structures have other members in other versions. src/ffi.rs declares the same.
 *
 * Every function returns 0 or more, or a negative errno of libfabric. Nothing here keeps anything: what is
 * opened is closed by shim_close, information is freed by shim_free. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define API FI_VERSION(1, 17)
#define PRIVATE 64

/* What src/ffi.rs relies on. */
_Static_assert(sizeof(struct iovec) == 16 && offsetof(struct iovec, iov_len) == 8, "iovec");
_Static_assert(sizeof(struct fi_rma_iov) == 24 && offsetof(struct fi_rma_iov, len) == 8 &&
	       offsetof(struct fi_rma_iov, key) == 16, "fi_rma_iov");
_Static_assert(sizeof(struct fi_cq_data_entry) == 40 && offsetof(struct fi_cq_data_entry, flags) == 8 &&
	       offsetof(struct fi_cq_data_entry, len) == 16 && offsetof(struct fi_cq_data_entry, data) == 32,
	       "fi_cq_data_entry");
_Static_assert(sizeof(struct fi_context2) <= 64 && _Alignof(struct fi_context2) <= 8, "fi_context2");
_Static_assert(FI_EIO == 5 && FI_EAGAIN == 11 && FI_ENODATA == 61 && FI_ENOKEY == 266 && FI_EAVAIL == 259, "errors");
_Static_assert(FI_RECV == 1 << 10 && FI_REMOTE_CQ_DATA == 1 << 17, "flags");
_Static_assert(FI_MR_VIRT_ADDR == 1 << 4 && FI_MR_PROV_KEY == 1 << 6, "mr_mode");

struct shim_info {
	const char *provider, *fabric, *domain;
	const void *source, *peer;
	uint64_t source_len, peer_len;
	uint64_t mr_mode, key_size, iov_limit, rma_iov_limit, max_msg, tx_size, rx_size;
	/* bytes of a number that can come with a write, if writes arrive in order; whether it uses up a receive */
	uint64_t number_size, number_receives;
	/* bytes of a message that is copied at once */
	uint64_t inject_size;
};

struct shim_event {
	/* 0: an error; 1: connection request, with info; 2: connected; 3: the peer is gone */
	uint32_t kind;
	/* of an error, positive */
	int32_t error;
	struct fi_info *info;
	uint64_t data_len;
	uint8_t data[PRIVATE];
};

struct shim_failure {
	void *context;
	int32_t error, detail;
	char text[128];
};

/* The library's cache of registrations keeps memory registered after it was closed, with all rights, and
 * watches this process's calls of mmap: what is closed here has to be closed. It is asked for when the library
 * is first used; before main nobody else reads the environment. */
__attribute__((constructor)) static void without_cache(void)
{
	setenv("FI_MR_CACHE_MONITOR", "disabled", 1);
	setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
	/* Libraries that libfabric brings catch signals with these words unsaid. */
	setenv("HFI_NO_BACKTRACE", "1", 1);
	setenv("IPATH_NO_BACKTRACE", "1", 1);
}

/* The library is loaded when it is first used: a program that does not use it does not need it. What comes with
 * it (PSM) catches signals when it is loaded, SIGBUS and SIGTERM among them, which are others' here: whatever was
 * there before is put back. */
static struct {
	struct fi_info *(*dupinfo)(const struct fi_info *);
	void (*freeinfo)(struct fi_info *);
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
	uint32_t (*version)(void);
	int there;
} library;

static void load(void)
{
	struct sigaction before[NSIG];
	int had[NSIG];
	for (int sig = 1; sig < NSIG; sig++)
		had[sig] = !sigaction(sig, NULL, &before[sig]);
	void *handle = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	for (int sig = 1; sig < NSIG; sig++)
		if (had[sig] && sig != SIGKILL && sig != SIGSTOP)
			sigaction(sig, &before[sig], NULL);
	if (!handle)
		return;
	/* The versions whose structures the header has. */
	library.dupinfo = dlvsym(handle, "fi_dupinfo", "FABRIC_1.3");
	library.freeinfo = dlvsym(handle, "fi_freeinfo", "FABRIC_1.3");
	library.getinfo = dlvsym(handle, "fi_getinfo", "FABRIC_1.3");
	library.fabric = dlvsym(handle, "fi_fabric", "FABRIC_1.1");
	library.strerror = dlvsym(handle, "fi_strerror", "FABRIC_1.0");
	library.version = dlvsym(handle, "fi_version", "FABRIC_1.0");
	library.there = library.dupinfo && library.freeinfo && library.getinfo && library.fabric &&
			library.strerror && library.version;
}

static int loaded(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return library.there;
}

/* What the header's inline functions call, too. */
#define HERE __attribute__((visibility("hidden")))

HERE struct fi_info *fi_dupinfo(const struct fi_info *info)
{
	return loaded() ? library.dupinfo(info) : NULL;
}

HERE void fi_freeinfo(struct fi_info *info)
{
	if (loaded())
		library.freeinfo(info);
}

HERE int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		    const struct fi_info *hints, struct fi_info **info)
{
	return loaded() ? library.getinfo(version, node, service, flags, hints, info) : -FI_ENOSYS;
}

HERE int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	return loaded() ? library.fabric(attr, fabric, context) : -FI_ENOSYS;
}

HERE const char *fi_strerror(int error)
{
	return loaded() ? library.strerror(error) : "libfabric is not installed";
}

HERE uint32_t fi_version(void)
{
	return loaded() ? library.version() : 0;
}

/* Sizes, for a test. */
int shim_sizes(uint64_t *out)
{
	out[0] = sizeof(struct shim_info);
	out[1] = sizeof(struct shim_event);
	out[2] = sizeof(struct shim_failure);
	out[3] = sizeof(struct fi_context2);
	return 0;
}

int shim_version(void)
{
	return (int)fi_version();
}

static int tell(const char *said, char *text, size_t len)
{
	if (!len)
		return 0;
	strncpy(text, said ? said : "", len - 1);
	text[len - 1] = 0;
	return 0;
}

/* The file that was loaded. */
int shim_library(char *text, size_t len)
{
	Dl_info of;
	return loaded() && dladdr((void *)library.version, &of) ? tell(of.dli_fname, text, len) : -FI_ENOSYS;
}

int shim_strerror(int error, char *text, size_t len)
{
	return tell(fi_strerror(error), text, len);
}

static int copy_address(void **to, size_t *to_len, const void *from, size_t len)
{
	void *copy = malloc(len);
	if (!copy)
		return -FI_ENOMEM;
	memcpy(copy, from, len);
	free(*to);
	*to = copy;
	*to_len = len;
	return 0;
}

/* node: a numeric address, or null for any. */
int shim_getinfo(const char *provider, const char *node, int ipv6, struct fi_info **out)
{
	struct fi_info *hints;
	int rc;
	if (!loaded())
		return -FI_ENOSYS;
	hints = fi_allocinfo();
	if (!hints)
		return -FI_ENOMEM;
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
	hints->addr_format = ipv6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	/* FI_MR_ENDPOINT is not among them: neither provider asks for it, and memory belongs to a domain here. */
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->fabric_attr->prov_name = strdup(provider);
	if (!hints->fabric_attr->prov_name) {
		fi_freeinfo(hints);
		return -FI_ENOMEM;
	}
	rc = fi_getinfo(API, node, NULL, node ? FI_SOURCE | FI_NUMERICHOST : 0, hints, out);
	fi_freeinfo(hints);
	return rc;
}

int shim_free(struct fi_info *info)
{
	fi_freeinfo(info);
	return 0;
}

int shim_next(const struct fi_info *info, struct fi_info **out)
{
	*out = info->next;
	return 0;
}

int shim_dup(const struct fi_info *info, struct fi_info **out)
{
	*out = fi_dupinfo(info);
	return *out ? 0 : -FI_ENOMEM;
}

int shim_describe(const struct fi_info *info, struct shim_info *out)
{
	memset(out, 0, sizeof *out);
	out->provider = info->fabric_attr->prov_name;
	out->fabric = info->fabric_attr->name;
	out->domain = info->domain_attr->name;
	out->source = info->src_addr;
	out->source_len = info->src_addr ? info->src_addrlen : 0;
	out->peer = info->dest_addr;
	out->peer_len = info->dest_addr ? info->dest_addrlen : 0;
	out->mr_mode = (uint64_t)(unsigned)info->domain_attr->mr_mode;
	out->key_size = info->domain_attr->mr_key_size;
	out->iov_limit = info->tx_attr->iov_limit;
	out->rma_iov_limit = info->tx_attr->rma_iov_limit;
	out->max_msg = info->ep_attr->max_msg_size;
	out->tx_size = info->tx_attr->size;
	out->rx_size = info->rx_attr->size;
	out->inject_size = info->tx_attr->inject_size;
	if (info->tx_attr->msg_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW))
		out->number_size = info->domain_attr->cq_data_size;
	out->number_receives = !!((info->mode | info->rx_attr->mode) & FI_RX_CQ_DATA);
	return 0;
}

int shim_set_source(struct fi_info *info, const void *address, size_t len)
{
	return copy_address(&info->src_addr, &info->src_addrlen, address, len);
}

/* verbs resolves the route when an endpoint is made: the peer has to be known by then. */
int shim_set_peer(struct fi_info *info, const void *address, size_t len)
{
	return copy_address(&info->dest_addr, &info->dest_addrlen, address, len);
}

int shim_fabric(struct fi_info *info, struct fid_fabric **out)
{
	return fi_fabric(info->fabric_attr, out, NULL);
}

int shim_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out)
{
	return fi_domain(fabric, info, out, NULL);
}

int shim_eq(struct fid_fabric *fabric, struct fid_eq **out, int *fd)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	int rc = fi_eq_open(fabric, &attr, out, NULL);
	if (rc)
		return rc;
	rc = fi_control(&(*out)->fid, FI_GETWAIT, fd);
	if (rc)
		fi_close(&(*out)->fid);
	return rc;
}

int shim_cq(struct fid_domain *domain, size_t size, struct fid_cq **out, int *fd)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .size = size, .wait_obj = FI_WAIT_FD };
	int rc = fi_cq_open(domain, &attr, out, NULL);
	if (rc)
		return rc;
	rc = fi_control(&(*out)->fid, FI_GETWAIT, fd);
	if (rc)
		fi_close(&(*out)->fid);
	return rc;
}

int shim_listen(struct fid_fabric *fabric, struct fi_info *info, struct fid_eq *eq, struct fid_pep **out)
{
	int rc = fi_passive_ep(fabric, info, out, NULL);
	if (rc)
		return rc;
	rc = fi_pep_bind(*out, &eq->fid, 0);
	if (!rc)
		rc = fi_listen(*out);
	if (rc)
		fi_close(&(*out)->fid);
	return rc;
}

int shim_name(struct fid *fid, void *address, size_t *len)
{
	return fi_getname(fid, address, len);
}

int shim_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_eq *eq, struct fid_cq *cq,
		  struct fid_ep **out)
{
	int rc = fi_endpoint(domain, info, out, NULL);
	if (rc)
		return rc;
	rc = fi_ep_bind(*out, &eq->fid, 0);
	if (!rc)
		rc = fi_ep_bind(*out, &cq->fid, FI_TRANSMIT | FI_RECV);
	if (!rc)
		rc = fi_enable(*out);
	if (rc)
		fi_close(&(*out)->fid);
	return rc;
}

int shim_connect(struct fid_ep *ep, const void *address, const void *data, size_t len)
{
	return fi_connect(ep, address, data, len);
}

int shim_accept(struct fid_ep *ep)
{
	return fi_accept(ep, NULL, 0);
}

int shim_reject(struct fid_pep *pep, struct fi_info *request)
{
	return fi_reject(pep, request->handle, NULL, 0);
}

int shim_shutdown(struct fid_ep *ep)
{
	return fi_shutdown(ep, 0);
}

/* 1: there was an event; 0: none. */
int shim_event(struct fid_eq *eq, struct shim_event *out)
{
	union {
		struct fi_eq_cm_entry entry;
		char room[sizeof(struct fi_eq_cm_entry) + 512];
	} buffer;
	uint32_t event = 0;
	ssize_t rc;
	memset(&buffer, 0, sizeof buffer);
	memset(out, 0, sizeof *out);
	rc = fi_eq_read(eq, &event, &buffer, sizeof buffer, 0);
	if (rc == -FI_EAGAIN)
		return 0;
	if (rc == -FI_EAVAIL) {
		struct fi_eq_err_entry error;
		memset(&error, 0, sizeof error);
		rc = fi_eq_readerr(eq, &error, 0);
		if (rc == -FI_EAGAIN)
			return 0;
		if (rc < 0)
			return (int)rc;
		out->error = error.err;
		return 1;
	}
	if (rc < 0)
		return (int)rc;
	if (event == FI_CONNREQ || event == FI_CONNECTED) {
		size_t len = (size_t)rc > sizeof buffer.entry ? (size_t)rc - sizeof buffer.entry : 0;
		out->kind = event == FI_CONNREQ ? 1 : 2;
		out->info = buffer.entry.info;
		out->data_len = len < PRIVATE ? len : PRIVATE;
		memcpy(out->data, buffer.entry.data, out->data_len);
	} else {
		out->kind = event == FI_SHUTDOWN ? 3 : 4;
	}
	return 1;
}

/* How many completions were stored; 0: none. */
int shim_read(struct fid_cq *cq, struct fi_cq_data_entry *out, size_t count)
{
	ssize_t rc = fi_cq_read(cq, out, count);
	return rc == -FI_EAGAIN ? 0 : (int)rc;
}

/* 1: a failed operation; 0: none. */
int shim_failure(struct fid_cq *cq, struct shim_failure *out)
{
	struct fi_cq_err_entry entry;
	const char *said;
	ssize_t rc;
	memset(&entry, 0, sizeof entry);
	memset(out, 0, sizeof *out);
	rc = fi_cq_readerr(cq, &entry, 0);
	if (rc == -FI_EAGAIN)
		return 0;
	if (rc < 0)
		return (int)rc;
	out->context = entry.op_context;
	out->error = entry.err;
	out->detail = entry.prov_errno;
	said = fi_cq_strerror(cq, entry.prov_errno, entry.err_data, out->text, sizeof out->text);
	if (said && said != out->text)
		strncpy(out->text, said, sizeof out->text - 1);
	out->text[sizeof out->text - 1] = 0;
	return 1;
}

/* 0: the descriptors may be waited for. */
int shim_trywait(struct fid_fabric *fabric, struct fid_eq *eq, struct fid_cq *cq)
{
	struct fid *fids[2] = { &eq->fid, cq ? &cq->fid : NULL };
	return fi_trywait(fabric, fids, cq ? 2 : 1);
}

/* remote: 1 readable, 2 writable, 3 both. */
int shim_register(struct fid_domain *domain, const void *start, size_t len, unsigned remote, uint64_t wanted,
		  struct fid_mr **out, void **desc, uint64_t *key)
{
	uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
	int rc;
	if (remote & 1)
		access |= FI_REMOTE_READ;
	if (remote & 2)
		access |= FI_REMOTE_WRITE;
	rc = fi_mr_reg(domain, start, len, access, 0, wanted, 0, out, NULL);
	if (rc)
		return rc;
	*desc = fi_mr_desc(*out);
	*key = fi_mr_key(*out);
	return 0;
}

static struct fi_msg_rma rma(const struct iovec *iov, void **desc, size_t count, const struct fi_rma_iov *remote,
			     size_t remotes, void *context)
{
	struct fi_msg_rma message;
	memset(&message, 0, sizeof message);
	message.msg_iov = iov;
	message.desc = desc;
	message.iov_count = count;
	message.rma_iov = remote;
	message.rma_iov_count = remotes;
	message.context = context;
	return message;
}

/* Complete when the bytes are in the peer's memory. */
int shim_rma_write(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count,
		   const struct fi_rma_iov *remote, size_t remotes, void *context)
{
	struct fi_msg_rma message = rma(iov, desc, count, remote, remotes, context);
	return (int)fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Complete when the bytes here are no longer needed. With the last part of them goes a number, which the peer gets
 * when they are all there. */
int shim_rma_deliver(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count,
		     const struct fi_rma_iov *remote, size_t remotes, void *context, int last, uint64_t number)
{
	struct fi_msg_rma message = rma(iov, desc, count, remote, remotes, context);
	message.data = number;
	return (int)fi_writemsg(ep, &message, FI_COMPLETION | (last ? FI_REMOTE_CQ_DATA : 0));
}

int shim_rma_read(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count,
		  const struct fi_rma_iov *remote, size_t remotes, void *context)
{
	struct fi_msg_rma message = rma(iov, desc, count, remote, remotes, context);
	return (int)fi_readmsg(ep, &message, FI_COMPLETION);
}

static struct fi_msg msg(const struct iovec *iov, void **desc, size_t count, void *context)
{
	struct fi_msg message;
	memset(&message, 0, sizeof message);
	message.msg_iov = iov;
	message.desc = desc;
	message.iov_count = count;
	message.context = context;
	return message;
}

int shim_send(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, void *context)
{
	struct fi_msg message = msg(iov, desc, count, context);
	return (int)fi_sendmsg(ep, &message, FI_COMPLETION);
}

/* The bytes are copied, and nothing completes. */
int shim_inject(struct fid_ep *ep, const struct iovec *bytes)
{
	return (int)fi_inject(ep, bytes->iov_base, bytes->iov_len, FI_ADDR_UNSPEC);
}

int shim_recv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, void *context)
{
	struct fi_msg message = msg(iov, desc, count, context);
	return (int)fi_recvmsg(ep, &message, FI_COMPLETION);
}

int shim_close(struct fid *fid)
{
	return fi_close(fid);
}
