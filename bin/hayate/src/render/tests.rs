//! What QEMU and libvirt are given.

use super::{libvirt, qemu};
use api::{Origin, Port, PortConfig, PortKind, PortState, SocketMode, Timestamp, Traffic, Vm};
use std::time::UNIX_EPOCH;

fn vm(vcpus: u16) -> Vm {
    Vm {
        name: "web".parse().unwrap(),
        memory: "2G".parse().unwrap(),
        vcpus,
        channel: None,
        ports: Vec::new(),
        origin: Origin::Runtime,
    }
}

fn port(socket: &str, change: impl FnOnce(&mut PortConfig)) -> Port {
    let mut config = PortConfig::new("lan".parse().unwrap(), PortKind::Vhost);
    change(&mut config);
    Port {
        name: "web0".parse().unwrap(),
        kind: config.kind,
        network: config.network.clone(),
        vm: Some("web".parse().unwrap()),
        origin: Origin::Runtime,
        state: PortState::Waiting,
        since: Timestamp::from(UNIX_EPOCH),
        failure: None,
        last_fault: None,
        sessions: 0,
        socket: Some(socket.into()),
        mode: Some(config.mode.unwrap_or_default()),
        ifname: None,
        netns: None,
        vlan: None,
        trunk: None,
        native: None,
        mtu: config.mtu,
        worker: None,
        moderation: None,
        queue_pairs: config.queue_pairs(),
        config,
        mac: None,
        page_size: None,
        features: Vec::new(),
        features_hex: String::new(),
        from_port: Traffic::default(),
        to_port: Traffic::default(),
        flood_copies: 0,
        drops: [].into(),
        queues: Vec::new(),
    }
}

fn plain(vm: &Vm, port: Port, version: &str) -> String {
    qemu::plain(&qemu::arguments(vm, &[port], &[], version.parse().unwrap(), false))
}

#[test]
fn a_plain_port() {
    let text = plain(&vm(1), port("/run/hayate/ports/web0.sock", |_| ()), "9.2");
    assert_eq!(
        text,
        "-m 2G\n\
         -smp 1\n\
         -object memory-backend-memfd,id=hayate-memory,size=2G,share=on\n\
         -machine memory-backend=hayate-memory\n\
         -chardev socket,id=char-web0,path=/run/hayate/ports/web0.sock,reconnect-ms=300\n\
         -netdev vhost-user,id=net-web0,chardev=char-web0\n\
         -device virtio-net-pci,netdev=net-web0,mac=02:36:bc:11:48:4f,rx_queue_size=1024,tx_queue_size=1024\n"
    );
}

#[test]
fn several_queues_and_jumbo_frames() {
    let text = plain(&vm(4), port("/s", |config| config.mtu = Some(9000)), "9.2");
    assert!(text.contains("chardev=char-web0,queues=4\n"), "{text}");
    assert!(text.contains(",mq=on,vectors=10,"), "{text}");
    assert!(text.contains(",host_mtu=9000\n"), "{text}");
    let told = plain(&vm(4), port("/s", |config| config.queues = Some(2)), "9.2");
    assert!(told.contains("queues=2\n") && told.contains("vectors=6"), "{told}");
    let many = plain(&vm(64), port("/s", |_| ()), "9.2");
    assert!(many.contains("queues=8\n"), "{many}");
}

#[test]
fn older_versions_and_the_other_mode() {
    let old = plain(&vm(1), port("/s", |_| ()), "7.2.22");
    assert!(old.contains("path=/s,reconnect=1\n"), "{old}");
    let new = plain(&vm(1), port("/s", |_| ()), "11");
    assert!(new.contains("path=/s,reconnect-ms=300\n"), "{new}");
    let client = plain(&vm(1), port("/s", |config| config.mode = Some(SocketMode::Client)), "9.2");
    assert!(client.contains("path=/s,server=on,wait=off\n"), "{client}");
    assert!("nine".parse::<qemu::Version>().is_err());
}

#[test]
fn a_guest_channel() {
    let vm = Vm { channel: Some("/run/a,b.sock".into()), ..vm(1) };
    let text = plain(&vm, port("/s", |_| ()), "9.1");
    assert!(
        text.contains(
            "-device virtio-serial-pci,id=hayate-serial\n\
             -chardev socket,id=hayate-channel,path=/run/a,,b.sock,reconnect=1\n\
             -device virtserialport,bus=hayate-serial.0,chardev=hayate-channel,name=org.hayate.0\n"
        ),
        "{text}"
    );
    let text = plain(&vm, port("/s", |_| ()), "11.0");
    assert!(text.contains("path=/run/a,,b.sock,reconnect-ms=300\n"), "{text}");
    let xml = libvirt::xml(&vm, &[], &[], false);
    assert!(
        xml.contains(
            "<channel type='unix'>\n  \
             <source mode='connect' path='/run/a,b.sock'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
             <target type='virtio' name='org.hayate.0'/>\n</channel>\n"
        ),
        "{xml}"
    );
}

#[test]
fn strange_paths_survive_qemu_shells_and_xml() {
    let strange = port("/a b/c,d/it's&<x>", |_| ());
    let arguments =
        qemu::arguments(&vm(1), std::slice::from_ref(&strange), &[], qemu::NEWEST, true);
    let text = qemu::for_shell(&arguments);
    assert!(text.contains(r"path=/a b/c,,d/it'\''s&<x>,reconnect-ms=300'"), "{text}");
    assert_eq!(text.matches(" \\\n").count(), arguments.len() - 1);
    assert!(text.ends_with("packed=on\n"), "{text}");
    let xml = libvirt::xml(&vm(1), &[strange], &[], false);
    assert!(xml.contains("path='/a b/c,d/it&apos;s&amp;&lt;x&gt;'"), "{xml}");
}

#[test]
fn libvirt_gets_the_same_card() {
    let xml = libvirt::xml(&vm(2), &[port("/s", |config| config.mtu = Some(9000))], &[], true);
    for part in [
        "<memory unit='KiB'>2097152</memory>",
        "<currentMemory unit='KiB'>2097152</currentMemory>",
        "<vcpu>2</vcpu>",
        "<source type='memfd'/>\n  <access mode='shared'/>",
        "<mac address='02:36:bc:11:48:4f'/>",
        "mode='client'>\n    <reconnect enabled='yes' timeout='1'/>",
        "<driver queues='2' rx_queue_size='1024' tx_queue_size='1024' packed='on'/>",
        "<mtu size='9000'/>",
    ] {
        assert!(xml.contains(part), "{part} is not in: {xml}");
    }
    let other = port("/s", |config| config.mode = Some(SocketMode::Client));
    assert!(libvirt::xml(&vm(1), &[other], &[], false).contains("mode='server'/>"));
}
