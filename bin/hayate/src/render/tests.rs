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
        function: None,
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
        policy: config.policy.clone(),
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

/// A PF and its VFs, in the order of their names, as the daemon lists ports.
fn functions(pf: &str, vfs: u16) -> Vec<Port> {
    let config = api::PfConfig::new("web".parse().unwrap(), "lan".parse().unwrap(), vfs);
    let mut ports: Vec<Port> = config
        .functions(&pf.parse().unwrap())
        .unwrap()
        .into_iter()
        .map(|(name, function)| {
            let mut port = port(&format!("/run/{name}.sock"), |_| ());
            (port.name, port.function) = (name, Some(function));
            port
        })
        .collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    ports
}

#[test]
fn virtual_functions_come_before_their_pf() {
    let ports = [vec![port("/s", |_| ())], functions("web-pf0", 2)].concat();
    let arguments = qemu::arguments(&vm(1), &ports, &[], "10.1".parse().unwrap(), true);
    let text = qemu::plain(&arguments);
    let (_, text) = text.split_once("packed=on\n").unwrap();
    assert_eq!(
        text,
        "-device pcie-root-port,id=root-web-pf0,bus=pcie.0,chassis=64,slot=0\n\
         -chardev socket,id=char-web-pf0vf0,path=/run/web-pf0vf0.sock,reconnect-ms=300\n\
         -netdev vhost-user,id=net-web-pf0vf0,chardev=char-web-pf0vf0\n\
         -device virtio-net-pci,netdev=net-web-pf0vf0,mac=MAC0,rx_queue_size=1024,tx_queue_size=1024,packed=on,bus=root-web-pf0,addr=0x0.0x1,sriov-pf=pf-web-pf0\n\
         -chardev socket,id=char-web-pf0vf1,path=/run/web-pf0vf1.sock,reconnect-ms=300\n\
         -netdev vhost-user,id=net-web-pf0vf1,chardev=char-web-pf0vf1\n\
         -device virtio-net-pci,netdev=net-web-pf0vf1,mac=MAC1,rx_queue_size=1024,tx_queue_size=1024,packed=on,bus=root-web-pf0,addr=0x0.0x2,sriov-pf=pf-web-pf0\n\
         -chardev socket,id=char-web-pf0,path=/run/web-pf0.sock,reconnect-ms=300\n\
         -netdev vhost-user,id=net-web-pf0,chardev=char-web-pf0\n\
         -device virtio-net-pci,netdev=net-web-pf0,mac=MACP,rx_queue_size=1024,tx_queue_size=1024,packed=on,bus=root-web-pf0,addr=0x0.0x0,id=pf-web-pf0\n"
            .replace("MAC0", &api::Mac::of_port("web", "web-pf0vf0").to_string())
            .replace("MAC1", &api::Mac::of_port("web", "web-pf0vf1").to_string())
            .replace("MACP", &api::Mac::of_port("web", "web-pf0").to_string())
    );
}

#[test]
fn all_functions_are_equally_spaced_and_several_pfs_are_apart() {
    let ports = [functions("a", 255), functions("b", 1)].concat();
    let arguments = qemu::arguments(&vm(1), &ports, &[], qemu::NEWEST, false);
    let devices: Vec<&str> = arguments
        .iter()
        .filter(|[option, _]| option == "-device")
        .map(|[_, value]| value.as_str())
        .collect();
    let number = |device: &str| {
        let (_, place) = device.split_once("addr=0x").unwrap();
        let (slot, function) = place.split(',').next().unwrap().split_once(".0x").unwrap();
        let hexadecimal = |text| u16::from_str_radix(text, 16).unwrap();
        assert!(hexadecimal(slot) < 32 && hexadecimal(function) < 8, "{device}");
        hexadecimal(slot) * 8 + hexadecimal(function)
    };
    assert_eq!(devices.len(), 1 + 256 + 1 + 2);
    assert!(devices[0].ends_with("chassis=64,slot=0,mem-reserve=8M,pref64-reserve=16M"));
    for (n, device) in (1..).zip(&devices[1..256]) {
        assert_eq!(number(device), n);
        assert!(device.contains(",bus=root-a,") && device.ends_with("sriov-pf=pf-a"), "{device}");
    }
    assert!(devices[256].ends_with("bus=root-a,addr=0x0.0x0,id=pf-a"), "{}", devices[256]);
    assert!(devices[257].ends_with("id=root-b,bus=pcie.0,chassis=64,slot=1"), "{}", devices[257]);
    assert!(devices[258].ends_with("bus=root-b,addr=0x0.0x1,sriov-pf=pf-b"), "{}", devices[258]);
    assert!(devices[259].ends_with("bus=root-b,addr=0x0.0x0,id=pf-b"), "{}", devices[259]);
}

#[test]
fn libvirt_passes_virtual_functions_on() {
    let ports = functions("web-pf0", 9);
    let xml = libvirt::xml(&vm(1), &ports, &[], false);
    assert!(!xml.contains("<interface") && !xml.contains("in <devices>"), "{xml}");
    let (_, words) = xml.split_once("<qemu:commandline xmlns:qemu='").unwrap();
    let words: Vec<&str> = words
        .lines()
        .filter_map(|line| line.strip_prefix("  <qemu:arg value='")?.strip_suffix("'/>"))
        .collect();
    let arguments = qemu::arguments(&vm(1), &ports, &[], qemu::NEWEST, false);
    let same: Vec<&str> = arguments.iter().flatten().map(String::as_str).collect();
    assert!(same.ends_with(&words), "{words:?}");
    assert_eq!(words.len(), 2 + 10 * 6);
    assert!(!libvirt::xml(&vm(1), &[port("/s", |_| ())], &[], false).contains("qemu:"));
}
