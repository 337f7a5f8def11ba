//! What happens to guests and to the daemon: reboots and kills, with traffic flowing.

use std::time::{Duration, Instant};

use api::PortState;
use e2e::guest::{Config, Guest, Nic};
use e2e::hayate::Hayate;
use e2e::process::pause;
use e2e::suite::{Case, Suite, case};
use e2e::traffic::{Host, must_ping, random_file, transfer, wait_listening};
use e2e::{Context, Result, assets, bail, ensure};

use super::{ip, mac, up};

/// Three guests; device 0 of each is on network n0 (split rings), device 1 on n1 (packed).
struct Three {
    a: Guest,
    b: Guest,
    c: Guest,
    hayate: Hayate,
}

const PROPS: [&str; 2] = ["", "packed=on"];

fn start(hayate: &Hayate, name: &str, side: usize) -> Result<Guest> {
    let mut config = Config::new(name);
    for (i, props) in PROPS.iter().enumerate() {
        let mut nic = Nic::new(&hayate.dir().join(format!("{name}{i}.sock")), 0);
        nic.mac = mac(side, i);
        nic.props = (*props).into();
        config = config.nic(nic);
    }
    Guest::start(assets::get()?, hayate.dir(), config)
}

fn configure(guest: &mut Guest, n: u8) -> Result<()> {
    up(guest, 0, n)?;
    up(guest, 1, n)
}

fn boot() -> Result<Three> {
    let hayate = Hayate::start(&[])?;
    for i in 0..PROPS.len() {
        hayate.network(&format!("n{i}"))?;
        for g in ["a", "b", "c"] {
            hayate.vhost(&format!("{g}{i}"), &format!("n{i}"), "")?;
        }
    }
    let [a, b, c] =
        ["a", "b", "c"].map(|name| start(&hayate, name, usize::from(name.as_bytes()[0] - b'a')));
    let mut three = Three { a: a?, b: b?, c: c?, hayate };
    for (g, n) in [(&mut three.a, 1), (&mut three.b, 2), (&mut three.c, 3)] {
        g.wait_ready()?;
        configure(g, n)?;
    }
    Ok(three)
}

/// How long a living connection may be silent. TCP's timer doubles with each loss, so it may take a
/// while to notice that the way is open again.
const SILENCE: Duration = Duration::from_secs(40);

/// A TCP connection from a guest to another that lives for some seconds.
struct Stream {
    port: u16,
    pieces: u32,
}

impl Stream {
    /// Opens it: `pieces` times 1 MB, ten a second at most.
    fn open(
        from: &mut Guest,
        to: &mut Guest,
        address: &str,
        port: u16,
        pieces: u32,
    ) -> Result<Self> {
        let (path, _) = random_file(from, 1)?;
        // Both sides write one file per port; an old one would be mistaken for progress.
        to.sh(&format!("rm -f /tmp/got-{port}"))?;
        to.background(
            &format!(
                "socat -u TCP4-LISTEN:{port},reuseaddr OPEN:/tmp/got-{port},creat,trunc; echo end"
            ),
            &format!("/tmp/got-{port}.log"),
        )?;
        wait_listening(to, port)?;
        from.background(
            &format!(
                "for i in $(seq {pieces}); do cat {path}; sleep 0.1; done | socat -u - TCP4:{address}:{port}; echo end"
            ),
            &format!("/tmp/sent-{port}.log"),
        )?;
        let s = Self { port, pieces };
        s.wait_past(to, 1)?;
        Ok(s)
    }

    fn arrived(&self, to: &mut Guest) -> Result<u64> {
        let size = to.sh(&format!("stat -c %s /tmp/got-{} 2>/dev/null || echo 0", self.port))?;
        size.trim().parse().ok().context(|| format!("size {size:?}"))
    }

    /// Waits until more than `bytes` arrived. However slow: only silence is a failure.
    fn wait_past(&self, to: &mut Guest, bytes: u64) -> Result<u64> {
        let (mut last, mut heard) = (0, Instant::now());
        loop {
            let n = self.arrived(to)?;
            if n > bytes {
                return Ok(n);
            }
            if n > last {
                (last, heard) = (n, Instant::now());
            }
            let silent = heard.elapsed();
            ensure!(
                silent < SILENCE,
                "nothing arrived for {} s, {n} bytes before",
                silent.as_secs()
            );
            pause(Duration::from_millis(50))?;
        }
    }

    /// Waits for its end and compares the hashes of what was sent and what arrived.
    fn close(&self, from: &mut Guest, to: &mut Guest) -> Result<()> {
        let total = u64::from(self.pieces) << 20;
        let waited = self.wait_past(to, total - 1);
        if waited.is_err() {
            let port = self.port;
            let sent = from.sh(&format!("cat /tmp/sent-{port}.log; ss -tino 'dport = :{port}'"))?;
            let got = to.sh(&format!("cat /tmp/got-{port}.log; ss -tino 'sport = :{port}'"))?;
            bail!(
                "{} of {total} bytes arrived; sender: {sent}; receiver: {got}",
                self.arrived(to)?
            );
        }
        let (path, _) = random_file(from, 1)?;
        let pieces = self.pieces;
        let sent =
            from.sh(&format!("for i in $(seq {pieces}); do cat {path}; done | sha256sum"))?;
        let got = to.sh(&format!("sha256sum </tmp/got-{}", self.port))?;
        ensure!(sent == got, "sent {sent}, arrived {got}");
        Ok(())
    }
}

/// A guest reboots while it receives; afterwards traffic passes as before.
fn guest_reboots(t: &mut Three) -> Result<String> {
    let s = Stream::open(&mut t.a, &mut t.b, &ip(0, 2), 7100, 100)?;
    s.wait_past(&mut t.b, 2 << 20)?;
    let seconds = t.b.reboot()?;
    configure(&mut t.b, 2)?;
    t.a.sh("killall socat; true")?;
    for i in 0..PROPS.len() {
        must_ping(&mut t.a, &ip(i, 2), 3, "")?;
        transfer(&mut t.a, &mut t.b, &ip(i, 2), 4)?;
        transfer(&mut t.b, &mut t.a, &ip(i, 1), 4)?;
    }
    t.hayate.check()?;
    Ok(format!("back after {seconds:.1} s on split and packed rings"))
}

/// QEMU is killed while its guest sends and receives. Two other guests do not notice, the port
/// waits for the next QEMU, and that one works.
fn qemu_killed(t: &mut Three) -> Result<String> {
    let doomed = Stream::open(&mut t.a, &mut t.b, &ip(0, 2), 7200, 200)?;
    let back = Stream::open(&mut t.b, &mut t.a, &ip(0, 1), 7201, 200)?;
    let healthy = Stream::open(&mut t.a, &mut t.c, &ip(0, 3), 7202, 40)?;
    t.c.background("ping -i 0.05 -c 80 -W 2 10.0.0.1", "/tmp/ping.log")?;
    doomed.wait_past(&mut t.b, 2 << 20)?;
    back.wait_past(&mut t.a, 1 << 20)?;
    t.b.kill9();
    for i in 0..PROPS.len() {
        t.hayate.wait_state(&format!("b{i}"), PortState::Waiting)?;
    }
    healthy.close(&mut t.a, &mut t.c)?;
    let pinged = t.c.sh(
        "for i in $(seq 100); do grep -q transmitted /tmp/ping.log && break; sleep 0.1; done; cat /tmp/ping.log",
    )?;
    ensure!(
        pinged.contains(" 0% packet loss"),
        "pings between the other guests were lost:\n{pinged}"
    );
    t.a.sh("killall socat; true")?;
    t.b = start(&t.hayate, "b", 1)?;
    t.b.wait_ready()?;
    configure(&mut t.b, 2)?;
    for i in 0..PROPS.len() {
        t.hayate.wait_state(&format!("b{i}"), PortState::Running)?;
        must_ping(&mut t.c, &ip(i, 2), 3, "")?;
        transfer(&mut t.b, &mut t.c, &ip(i, 3), 4)?;
        t.hayate.conserved(&format!("n{i}"))?;
    }
    t.hayate.check()?;
    Ok("the others lost nothing; the port took the next QEMU".into())
}

/// The daemon is killed and started again under a TCP connection: it goes on and its bytes agree.
/// On packed rings too, of which QEMU cannot tell the next daemon where they stand.
fn daemon_killed(t: &mut Three, i: usize) -> Result<String> {
    let port = 7300 + u16::try_from(i)?;
    let s = Stream::open(&mut t.a, &mut t.b, &ip(i, 2), port, 40)?;
    s.wait_past(&mut t.b, 4 << 20).context(|| "before the daemon was killed".into())?;
    t.hayate.kill9();
    pause(Duration::from_millis(300))?;
    let before = s.arrived(&mut t.b)?;
    let start = Instant::now();
    t.hayate.launch()?;
    for g in ["a", "b", "c"] {
        t.hayate.wait_state(&format!("{g}{i}"), PortState::Running)?;
    }
    if let Err(e) = s.wait_past(&mut t.b, before) {
        let port = s.port;
        let sender =
            t.a.sh(&format!("ss -tino 'dport = :{port}'; ip -s link show eth{i}; ip neigh"))?;
        let receiver =
            t.b.sh(&format!("ss -tino 'sport = :{port}'; ip -s link show eth{i}; ip neigh"))?;
        let queues: Vec<_> = t.hayate.ports()?.into_iter().map(|p| (p.name, p.queues)).collect();
        bail!(
            "no byte after the daemon came back ({before} before): {e}\n{}{queues:?}\nsender: {sender}\nreceiver: {receiver}",
            t.hayate.counters(&format!("n{i}"))?
        );
    }
    let resumed = start.elapsed().as_secs_f64();
    s.close(&mut t.a, &mut t.b)?;
    must_ping(&mut t.c, &ip(i, 1), 3, "")?;
    t.hayate.conserved(&format!("n{i}"))?;
    Ok(format!("bytes flowed again {resumed:.1} s after the start, hashes agree"))
}

/// A daemon that ends in order and is started again: QEMU finds it, rings of both formats go on.
fn daemon_stopped_and_started(t: &mut Three) -> Result<String> {
    let mut streams = Vec::new();
    for i in 0..PROPS.len() {
        let port = 7400 + u16::try_from(i)?;
        streams.push(Stream::open(&mut t.a, &mut t.b, &ip(i, 2), port, 40)?);
    }
    t.hayate.terminate()?;
    pause(Duration::from_millis(500))?;
    t.hayate.launch()?;
    for g in ["a", "b", "c"] {
        for i in 0..PROPS.len() {
            t.hayate.wait_state(&format!("{g}{i}"), PortState::Running)?;
        }
    }
    for (i, s) in streams.iter().enumerate() {
        s.close(&mut t.a, &mut t.b)?;
        must_ping(&mut t.c, &ip(i, 1), 3, "")?;
    }
    Ok("all six ports run again, the connections went on".into())
}

/// A guest reboots while there is no daemon: what the next one knows of its packed rings is of
/// rings that are no more.
fn guest_reboots_without_daemon(t: &mut Three) -> Result<String> {
    t.hayate.kill9();
    t.b.reboot()?;
    t.hayate.launch()?;
    for g in ["a", "b", "c"] {
        for i in 0..PROPS.len() {
            t.hayate.wait_state(&format!("{g}{i}"), PortState::Running)?;
        }
    }
    configure(&mut t.b, 2)?;
    for i in 0..PROPS.len() {
        must_ping(&mut t.a, &ip(i, 2), 3, "")?;
        transfer(&mut t.a, &mut t.b, &ip(i, 2), 4)?;
        transfer(&mut t.b, &mut t.c, &ip(i, 3), 4)?;
    }
    t.hayate.check()?;
    Ok("split and packed rings start anew, the others go on".into())
}

pub(crate) fn group(suite: &mut Suite) {
    let cases: Vec<Case<Three>> = vec![
        case("guest_reboots", guest_reboots),
        case("qemu_killed", qemu_killed),
        case("daemon_killed_under_tcp::packed", |t: &mut Three| daemon_killed(t, 1)),
        case("daemon_killed_under_tcp::split", |t: &mut Three| daemon_killed(t, 0)),
        case("daemon_stopped_and_started", daemon_stopped_and_started),
        case("guest_reboots_without_daemon", guest_reboots_without_daemon),
    ];
    suite.group("life", boot, cases, |t| {
        let Three { a, b, c, hayate } = t;
        drop((a, b, c));
        hayate.stop()?;
        Ok("no panic".into())
    });
}
