// The dashboard's frame around two sessions side by side; the page itself does not change.
follow(async () => {});
