//! Images from one process to the next: a publish-subscribe service, and an event service for each direction,
//! as in iceoryx2's example of event-based communication. No process polls: an idle process waits for an
//! event.
//!
//! Nothing is lost: the subscriber's buffer does not overflow, and its publisher waits until there is room.
//! The publisher waits for the event that an image was taken; iceoryx2's own way to block,
//! `RetryUntilDelivered`, looks again and sleeps.

use std::fmt::Debug;

use anyhow::{Context as _, ensure};
use bytemuck::AnyBitPattern;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections as _;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::port_factory::{event, publish_subscribe};

type Service = ipc::Service;

/// As many as a channel of the other pipelines holds.
const BUFFER: u64 = 16;
/// A subscriber's events: it has opened the service, and it has taken an image.
const OPENED: EventId = EventId::new(1);
const TAKEN: EventId = EventId::new(2);

/// The header of an image.
#[derive(Clone, Copy, Debug, Default, ZeroCopySend)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) id: u64,
    /// The size of the photograph, in pixels.
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Makes a node of iceoryx2, which a signal ends as it ends any process.
pub(crate) fn node() -> anyhow::Result<Node<Service>> {
    Ok(NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create()?)
}

/// The services of one link, by its name.
struct Services<T: Debug + ZeroCopySend + 'static> {
    images: publish_subscribe::PortFactory<Service, [T], Header>,
    sent: event::PortFactory<Service>,
    taken: event::PortFactory<Service>,
}

impl<T: Debug + ZeroCopySend> Services<T> {
    fn open(node: &Node<Service>, name: &str) -> anyhow::Result<Self> {
        let event = |what: &str| -> anyhow::Result<_> {
            Ok(node
                .service_builder(&format!("{name}/{what}").as_str().try_into()?)
                .event()
                .open_or_create()?)
        };
        let images = node
            .service_builder(&name.try_into()?)
            .publish_subscribe::<[T]>()
            .user_header::<Header>()
            .enable_safe_overflow(false)
            .subscriber_max_buffer_size(BUFFER as usize)
            .subscriber_max_borrowed_samples(1)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(1)
            .open_or_create()?;
        Ok(Services { images, sent: event("sent")?, taken: event("taken")? })
    }
}

/// The sending end for images.
pub(crate) struct Sender<T: Debug + ZeroCopySend + 'static> {
    images: Publisher<Service, [T], Header>,
    sent: Notifier<Service>,
    taken: Listener<Service>,
    /// Images in the subscriber's buffer, as far as is known.
    under_way: u64,
}

impl<T: Debug + ZeroCopySend + AnyBitPattern> Sender<T> {
    /// Waits for the receiver. No image has more than `max_len` values.
    pub(crate) fn open(node: &Node<Service>, name: &str, max_len: usize) -> anyhow::Result<Self> {
        let Services { images, sent, taken } = Services::open(node, name)?;
        let mut sender = Sender {
            images: images
                .publisher_builder()
                .initial_max_slice_len(max_len)
                .allocation_strategy(AllocationStrategy::Static)
                .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
                .create()?,
            sent: sent.notifier_builder().create()?,
            taken: taken.listener_builder().create()?,
            under_way: 0,
        };
        // The end that opens first waits: it listens before it looks, and the receiver notifies it after
        // opening.
        while images.dynamic_config().number_of_subscribers() == 0 {
            sender.hear()?;
        }
        sender.images.update_connections()?;
        Ok(sender)
    }

    /// Loans memory for an image, with its old contents.
    pub(crate) fn loan(&self, header: Header, len: usize) -> anyhow::Result<SampleMut<Service, [T], Header>> {
        let sample = self.images.loan_slice_uninit(len).with_context(|| {
            format!("no memory for {len} values, of at most {}", self.images.initial_max_slice_len())
        })?;
        // SAFETY: any bits are a value, and memory that is mapped has some.
        let mut sample = unsafe { sample.assume_init() };
        *sample.user_header_mut() = header;
        Ok(sample)
    }

    /// Waits where the receiver's buffer is full.
    pub(crate) fn send(&mut self, image: SampleMut<Service, [T], Header>) -> anyhow::Result<()> {
        while self.under_way == BUFFER {
            self.hear()?;
        }
        ensure!(image.send()? == 1, "nobody is there to take an image");
        self.under_way += 1;
        self.sent.notify()?;
        Ok(())
    }

    /// Waits until all images are taken: they are in this process's memory.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        while self.under_way > 0 {
            self.hear()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> anyhow::Result<()> {
        let mut taken = 0;
        self.taken.blocking_wait(|event| {
            if event.id == TAKEN {
                taken += event.count;
            }
        })?;
        self.under_way = self.under_way.saturating_sub(taken);
        Ok(())
    }
}

/// The receiving end for images.
pub(crate) struct Receiver<T: Debug + ZeroCopySend + 'static> {
    images: Subscriber<Service, [T], Header>,
    sent: Listener<Service>,
    taken: Notifier<Service>,
    next: u64,
}

impl<T: Debug + ZeroCopySend> Receiver<T> {
    pub(crate) fn open(node: &Node<Service>, name: &str) -> anyhow::Result<Self> {
        let Services { images, sent, taken } = Services::open(node, name)?;
        let receiver = Receiver {
            sent: sent.listener_builder().create()?,
            images: images.subscriber_builder().create()?,
            taken: taken.notifier_builder().create()?,
            next: 0,
        };
        receiver.taken.notify_with_custom_event_id(OPENED)?;
        Ok(receiver)
    }

    /// Waits for the next image. The image before must have been dropped.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Sample<Service, [T], Header>> {
        let image = loop {
            if let Some(image) = self.images.receive()? {
                break image;
            }
            self.sent.blocking_wait(|_| {})?;
        };
        self.taken.notify_with_custom_event_id(TAKEN)?;
        let id = image.user_header().id;
        ensure!(id == self.next, "image {id} came for image {}", self.next);
        self.next += 1;
        Ok(image)
    }
}
