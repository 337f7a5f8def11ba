//! A router that translates (masquerade) and filters by connection, of which the switch does the
//! established ones: a client inside, a server outside, both namespaces on TAP ports.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::hayate::Hayate;
use e2e::netns::Netns;
use e2e::process::{Process, tail, wait_for};
use e2e::{Context, Result, assets, bail, ensure};
use serde_json::Value;

/// Timeout of connections in the router, seconds.
const TIMEOUT: u64 = 5;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module. The router is the VM `r`; its port `r0` is inside, `r1` outside.
pub struct Lab {
    client: Netns,
    server: Netns,
    router: Netns,
    agent: Process,
    pub hayate: Hayate,
}

const RULES: &str = "
    table inet f {
        chain c {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            iifname \"r0\" counter accept
        }
    }
    table ip n {
        chain p {
            type nat hook postrouting priority 100;
            oifname \"r1\" masquerade
        }
    }
";

pub fn set_up() -> Result<Lab> {
    let hayate = Hayate::start(&[])?;
    let [client, router, server] = [Netns::new()?, Netns::new()?, Netns::new()?];
    let channel = hayate.dir().join("r.channel");
    hayate.cli(&format!("vm add r --channel {}", channel.display()))?;
    for (network, inner, port, host) in
        [("inside", "r0", "c", &client), ("outside", "r1", "s", &server)]
    {
        hayate.network(network)?;
        hayate.tap(inner, network, router.name(), "--vm r")?;
        hayate.tap(port, network, host.name(), "")?;
    }
    for (netns, link, v4, v6) in [
        (&router, "r0", "10.1.0.1/24", "fd00:1::1/64"),
        (&router, "r1", "192.0.2.1/24", "2001:db8:2::1/64"),
        (&client, "c", "10.1.0.2/24", "fd00:1::2/64"),
        (&server, "s", "192.0.2.2/24", "2001:db8:2::2/64"),
    ] {
        netns.ip(&format!("link set {link} up"))?;
        netns.ip(&format!("addr add {v4} dev {link}"))?;
        netns.ip(&format!("addr add {v6} dev {link} nodad"))?;
    }
    for (netns, v4, v6) in
        [(&client, "10.1.0.1", "fd00:1::1"), (&server, "192.0.2.1", "2001:db8:2::1")]
    {
        netns.ip(&format!("route add default via {v4}"))?;
        netns.ip(&format!("route add default via {v6}"))?;
    }
    router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    let rules = hayate.dir().join("rules.nft");
    std::fs::write(&rules, RULES)?;
    router.sh(&format!("nft -f {}", rules.display()))?;
    // They are there once rules need conntrack.
    router.sh(&format!(
        "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established={TIMEOUT} \
         net.netfilter.nf_conntrack_udp_timeout_stream={TIMEOUT}"
    ))?;
    let command = format!(
        "{} run --channel {} --status-socket {}",
        assets::agent()?.display(),
        channel.display(),
        hayate.dir().join("agent.sock").display()
    );
    let agent = router.start(&command, &hayate.dir().join("agent.log"))?;
    let mut lab = Lab { client, server, router, agent, hayate };
    lab.wait("the agent to see connections", |router| router["policy"] == "stateful")?;
    Ok(lab)
}

/// A socket of a namespace, made by a thread that goes there.
fn within<T: Send>(netns: &Netns, make: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
    let file = File::open(format!("/run/netns/{}", netns.name()))?;
    let made = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            use std::os::fd::AsFd;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            make()
        });
        there.join()
    });
    match made {
        Ok(made) => Ok(made?),
        Err(_) => bail!("a thread panicked"),
    }
}

/// Numbers that tell their place in a stream.
fn pattern(at: u64, bytes: &mut [u8]) {
    for (byte, place) in bytes.iter_mut().zip(at..) {
        *byte = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
}

impl Lab {
    /// What `hayate router show r --json` says of the router as a whole.
    fn show(&self) -> Result<Value> {
        let text = self.hayate.cli("router show r --json")?;
        let mut shown: Value = serde_json::from_str(&text).context(|| text.clone())?;
        Ok(shown["router"].take())
    }

    fn wait(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
        let mut last = Value::Null;
        wait_for(what, PATIENCE, || {
            self.agent.check()?;
            last = self.show()?;
            Ok(is(&last).then_some(()))
        })
        .context(|| {
            let log = tail(&self.hayate.dir().join("agent.log"), 3000);
            format!("{last:#}\n--- agent's log\n{log}\n--- conntrack\n{:?}", self.conntrack())
        })
    }

    fn bypassed(&self) -> Result<u64> {
        self.show()?["packets"].as_u64().context(|| "no packets".into())
    }

    /// What conntrack in the router knows.
    fn conntrack(&self) -> Result<String> {
        self.router.sh("cat /proc/net/nf_conntrack")
    }

    /// The entry of a connection, by a port of the client.
    fn entry(&self, port: u16) -> Result<Option<String>> {
        let all = self.conntrack()?;
        let port = format!(" sport={port} ");
        Ok(all.lines().find(|line| line.contains(&port)).map(str::to_owned))
    }

    /// A TCP connection from the client to the server: both ends of it.
    fn connect(&self, to: &str) -> Result<[TcpStream; 2]> {
        let to: SocketAddr = to.parse().context(|| to.into())?;
        let listener = within(&self.server, || TcpListener::bind(to))?;
        let near = within(&self.client, || TcpStream::connect_timeout(&to, PATIENCE))?;
        let (far, _) = listener.accept()?;
        for one in [&near, &far] {
            one.set_read_timeout(Some(PATIENCE))?;
            one.set_nodelay(true)?;
        }
        Ok([near, far])
    }

    /// Waits until the switch does it.
    fn delegated(&mut self) -> Result<()> {
        self.wait("the connection to be delegated", |router| router["connections"] == 2)
    }

    fn forgotten(&mut self) -> Result<()> {
        self.wait("the connection to be withdrawn", |router| router["connections"] == 0)
    }
}

/// Sends so many bytes one way, and compares what arrives.
fn stream(from: &TcpStream, to: &TcpStream, bytes: u64) -> Result<()> {
    let (mut from, mut to) = (from, to);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> std::io::Result<()> {
            let mut block = vec![0; 1 << 16];
            for at in (0..bytes).step_by(block.len()) {
                pattern(at, &mut block);
                from.write_all(&block)?;
            }
            Ok(())
        });
        let (mut got, mut expected) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        for at in (0..bytes).step_by(got.len()) {
            to.read_exact(&mut got)?;
            pattern(at, &mut expected);
            ensure!(got == expected, "other bytes than were sent, near byte {at}");
        }
        match sender.join() {
            Ok(sent) => Ok(sent?),
            Err(_) => bail!("the sender panicked"),
        }
    })
}

/// A word there and one back.
fn exchange(near: &TcpStream, far: &TcpStream) -> Result<()> {
    let mut word = [0; 4];
    for (mut from, mut to) in [(near, far), (far, near)] {
        from.write_all(b"word")?;
        to.read_exact(&mut word)?;
        ensure!(word == *b"word", "{word:?} came");
    }
    Ok(())
}

/// A stream each way past the router, then little for longer than the router keeps a connection, and
/// its end by the router.
fn tcp(lab: &mut Lab, to: &str) -> Result<String> {
    const BYTES: u64 = 64 << 20;
    let [near, far] = lab.connect(to)?;
    let port = near.local_addr()?.port();
    exchange(&near, &far)?;
    lab.delegated()?;
    let before = lab.bypassed()?;
    stream(&near, &far, BYTES)?;
    stream(&far, &near, BYTES)?;
    // They are counted a tenth of a second later.
    let least = BYTES / 65536;
    lab.wait("the stream to be counted", |router| {
        router["packets"].as_u64() > Some(before + least)
    })?;
    let end = Instant::now() + Duration::from_secs(3 * TIMEOUT + 1);
    while Instant::now() < end {
        exchange(&near, &far)?;
        let entry = lab.entry(port)?.context(|| "conntrack forgot the connection".into())?;
        ensure!(entry.contains("ESTABLISHED"), "{entry}");
        // Kept alive, not given back to the router in time.
        ensure!(lab.show()?["connections"] == 2, "it is the router's again");
        std::thread::sleep(Duration::from_millis(100));
    }
    let bypassed = lab.bypassed()? - before;
    near.shutdown(std::net::Shutdown::Write)?;
    let mut rest = Vec::new();
    (&far).read_to_end(&mut rest)?;
    lab.forgotten()?;
    far.shutdown(std::net::Shutdown::Write)?;
    (&near).read_to_end(&mut rest)?;
    ensure!(rest.is_empty(), "{} bytes too many", rest.len());
    wait_for("conntrack to see the end", PATIENCE, || {
        Ok(lab.entry(port)?.filter(|entry| entry.contains("TIME_WAIT")))
    })?;
    Ok(format!(
        "{} MiB each way and {} s of words, {bypassed} packets past the router; its entry stayed \
         alive and ended in TIME_WAIT",
        BYTES >> 20,
        3 * TIMEOUT
    ))
}

pub fn masqueraded(lab: &mut Lab) -> Result<String> {
    tcp(lab, "192.0.2.2:8001")
}

pub fn filtered_v6(lab: &mut Lab) -> Result<String> {
    tcp(lab, "[2001:db8:2::2]:8002")
}

/// A connection that ends by RST.
pub fn reset(lab: &mut Lab) -> Result<String> {
    let [near, far] = lab.connect("192.0.2.2:8003")?;
    let port = near.local_addr()?.port();
    // Up to that moment packets pass the router, which then knows an acknowledgement.
    let delegated = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let talk = scope.spawn(|| {
            while !delegated.load(Ordering::Relaxed) {
                exchange(&near, &far)?;
            }
            Ok(())
        });
        let is = lab.delegated();
        delegated.store(true, Ordering::Relaxed);
        match talk.join() {
            Ok(talked) => talked.and(is),
            Err(_) => bail!("a thread panicked"),
        }
    })?;
    stream(&near, &far, 16 << 20)?;
    // With something unread, Linux resets.
    (&near).write_all(b"unread")?;
    wait_for("the word", PATIENCE, || Ok((far.peek(&mut [0; 6])? == 6).then_some(())))?;
    drop(far);
    lab.forgotten()?;
    let mut rest = Vec::new();
    let ended = (&near).read_to_end(&mut rest);
    ensure!(ended.is_err(), "the client was not reset");
    let entry = lab.entry(port)?;
    ensure!(entry.as_ref().is_none_or(|one| one.contains("CLOSE")), "{entry:?}");
    Ok("the router and the client saw it".into())
}

/// UDP, for longer than the router keeps it, and then silence.
pub fn udp(lab: &mut Lab) -> Result<String> {
    let to: SocketAddr = ([192, 0, 2, 2], 8004).into();
    let far = within(&lab.server, || UdpSocket::bind(to))?;
    let near = within(&lab.client, || UdpSocket::bind(("0.0.0.0", 0)))?;
    near.connect(to)?;
    let port = near.local_addr()?.port();
    for one in [&near, &far] {
        one.set_read_timeout(Some(PATIENCE))?;
    }
    let exchange = || -> Result<()> {
        let mut word = [0; 8];
        near.send(b"there")?;
        let (_, from) = far.recv_from(&mut word)?;
        far.send_to(b"back", from)?;
        let len = near.recv(&mut word)?;
        ensure!(&word[..len] == b"back", "{word:?} came");
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    };
    // It has to go on for two seconds before the kernel takes it for a connection.
    wait_for("the datagrams to be delegated", PATIENCE, || {
        exchange()?;
        Ok((lab.show()?["connections"] == 2).then_some(()))
    })?;
    let before = lab.bypassed()?;
    let end = Instant::now() + Duration::from_secs(3 * TIMEOUT + 1);
    while Instant::now() < end {
        exchange()?;
        let entry = lab.entry(port)?;
        ensure!(entry.is_some(), "conntrack forgot the connection");
        ensure!(lab.show()?["connections"] == 2, "it is the router's again");
    }
    let bypassed = lab.bypassed()? - before;
    ensure!(bypassed > 20, "only {bypassed} packets went past the router");
    lab.forgotten()?;
    wait_for("conntrack to forget it", PATIENCE, || Ok(lab.entry(port)?.is_none().then_some(())))?;
    Ok(format!("{bypassed} packets past the router in {} s; then it was forgotten", 3 * TIMEOUT))
}

/// What is not established is the router's to refuse.
pub fn from_outside(lab: &mut Lab) -> Result<String> {
    let [near, far] = lab.connect("192.0.2.2:8005")?;
    exchange(&near, &far)?;
    lab.delegated()?;
    let to: SocketAddr = ([10, 1, 0, 2], 8006).into();
    let listener = within(&lab.client, || TcpListener::bind(to))?;
    let came = within(&lab.server, || TcpStream::connect_timeout(&to, Duration::from_secs(3)));
    ensure!(came.is_err(), "the server reached {to}");
    listener.set_nonblocking(true)?;
    ensure!(listener.accept().is_err(), "a connection came");
    exchange(&near, &far)?;
    drop((near, far));
    lab.forgotten()?;
    Ok("a connection from outside is refused while one from inside is past the router".into())
}

/// A rule against a connection that is past the router.
pub fn rule(lab: &mut Lab) -> Result<String> {
    let [near, far] = lab.connect("192.0.2.2:8007")?;
    exchange(&near, &far)?;
    lab.delegated()?;
    exchange(&near, &far)?;
    lab.router.sh("nft insert rule inet f c ip daddr 192.0.2.2 drop")?;
    let began = Instant::now();
    far.set_read_timeout(Some(Duration::from_millis(250)))?;
    let mut word = [0; 4];
    wait_for("words to stop", PATIENCE, || {
        (&near).write_all(b"word")?;
        Ok((&far).read_exact(&mut word).is_err().then_some(()))
    })?;
    let stopped = began.elapsed().saturating_sub(Duration::from_millis(250));
    lab.wait("nothing to be delegated", |router| {
        router["policy"] == "nothing" && router["connections"] == 0
    })?;
    lab.router.sh("nft flush ruleset")?;
    lab.router.sh(&format!("nft -f {}", lab.hayate.dir().join("rules.nft").display()))?;
    lab.wait("connections to be seen again", |router| router["policy"] == "stateful")?;
    Ok(format!("no word came {} ms after the rule", stopped.as_millis()))
}
