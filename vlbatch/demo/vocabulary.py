"""The words of the demo pictures: shapes, colours, nouns with their icon names, and printed words.

Only names live here, no pixels. An icon name is the name that the emoji sets of `atlas.py` give a
drawing; several drawings may share one noun (`cat-face` and `cat` are both "cat").
"""

from __future__ import annotations

SHAPES: tuple[str, ...] = (
    "circle", "square", "triangle", "star", "heart",
    "diamond", "cross", "ring", "crescent", "arrow",
)  # fmt: skip

# sRGB. Every pair is at least 80 apart (Euclidean), so that a cast of +-14 a channel confuses none.
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 34, 38),
    "orange": (250, 140, 20),
    "yellow": (250, 222, 60),
    "green": (40, 160, 64),
    "blue": (36, 84, 214),
    "purple": (138, 50, 170),
    "pink": (248, 150, 196),
    "brown": (122, 76, 40),
    "black": (20, 20, 22),
    "white": (246, 246, 246),
    "gray": (138, 140, 144),
}

PATTERNS: tuple[str, ...] = ("plain", "striped", "checkered", "dotted")
BACKGROUNDS: tuple[str, ...] = ("plain", "striped", "checkered", "dotted", "gradient")
SIZES: tuple[str, ...] = ("small", "large", "huge")
NUMBERS: tuple[str, ...] = ("zero", "one", "two", "three", "four", "five")

# One noun a line part: "noun", or "noun=icon,icon" where the icon names differ from the noun.
_NOUN_TABLE = """
airplane=airplane,small-airplane; alien; ambulance; anchor; ant; apple=red-apple,green-apple;
avocado; backpack; balloon; banana; basketball; bat; bathtub; battery; bear; bed; beer=beer-mug;
bell; bicycle; bird; bomb; book=closed-book,green-book,blue-book,orange-book;
bottle=bottle-with-popping-cork; bread; briefcase; bus;
butterfly; cactus; cake=birthday-cake,shortcake; camel=two-hump-camel,camel;
camera=camera,camera-with-flash; candle; candy; canoe; car=automobile; carrot; castle;
cat=cat-face,cat; cheese=cheese-wedge; cherry=cherries; chicken; church; cigarette; cloud;
clown=clown-face; coffee=hot-beverage; computer=desktop-computer; cookie; corncob=ear-of-corn;
couch=couch-and-lamp; cow=cow-face,cow; crab; crocodile; croissant; crown; cucumber;
deer; dice=game-die; dog=dog-face,dog; dolphin; door; dragon=dragon,dragon-face; dress;
drum; duck; ear; egg; eggplant; elephant; envelope; eye; factory; ferris wheel=ferris-wheel;
fire truck=fire-engine; fish=fish,tropical-fish; flame=fire; flashlight; fountain; fox; frog;
fuel pump=fuel-pump; gear; gem=gem-stone; ghost; goat; guitar; hamburger; hammer; handbag;
hat=top-hat; headphone; helicopter; horse=horse-face,horse;
hourglass=hourglass-done,hourglass-not-done;
house=house,house-with-garden; ice cream=soft-ice-cream,ice-cream; joystick; key=key,old-key;
keyboard; kiwi=kiwi-fruit; knife=kitchen-knife; koala; ladybug=lady-beetle; laptop;
leaf=maple-leaf; lemon; light bulb=light-bulb; lightning bolt=high-voltage; lion; lipstick; lizard;
lock=locked,unlocked; lollipop;
mailbox=closed-mailbox-with-raised-flag,open-mailbox-with-raised-flag;
map=world-map; microphone; microscope; milk=glass-of-milk; monkey=monkey-face; motorcycle;
mountain=snow-capped-mountain,mountain; mouse=mouse-face; mushroom; necktie; newspaper; nose;
octopus; owl; paintbrush; palm tree=palm-tree; panda; paperclip; peach; pear; pencil;
penguin; phone=mobile-phone; pig=pig-face,pig; pill; pine tree=evergreen-tree; pineapple; pizza;
popcorn; potato; printer; pumpkin=jack-o-lantern; rabbit=rabbit-face,rabbit; radio; rainbow;
rhinoceros; robot; rocket; rose; ruler=straight-ruler; sailboat; satellite; saxophone;
scooter=motor-scooter; scorpion; shark; sheep=ewe; shield; ship; shirt=t-shirt;
shoe=running-shoe; shopping cart=shopping-cart; shrimp; skull; snail; snake; snowflake;
snowman=snowman,snowman-without-snow; soccer ball=soccer-ball; spider; spoon; squid; stopwatch;
strawberry; sun=sun,sun-with-face; sunflower; sushi; syringe; taco; taxi; telephone; telescope;
television; tent; thermometer; tiger=tiger-face,tiger; toilet; tomato; tractor;
train=locomotive,train; tree=deciduous-tree; trophy; truck=delivery-truck,articulated-lorry;
trumpet;
tulip; turtle; umbrella=umbrella,umbrella-with-rain-drops,umbrella-on-ground; unicorn; violin;
volcano; watch; watermelon; whale=whale,spouting-whale; wine glass=wine-glass; wrench
"""

_PLURALS = {
    "deer": "deer", "dice": "dice", "fish": "fish", "knife": "knives", "leaf": "leaves",
    "mouse": "mice", "sheep": "sheep", "shrimp": "shrimp", "squid": "squid", "snowman": "snowmen",
    "sushi": "sushi", "milk": "milk", "popcorn": "popcorn", "potato": "potatoes",
    "tomato": "tomatoes", "volcano": "volcanoes",
}  # fmt: skip


def _parse(table: str) -> dict[str, tuple[str, ...]]:
    nouns = {}
    for entry in table.replace("\n", " ").split(";"):
        noun, _, icons = entry.strip().partition("=")
        nouns[noun] = tuple(icons.split(",")) if icons else (noun.replace(" ", "-"),)
    return nouns


NOUN_ICONS: dict[str, tuple[str, ...]] = _parse(_NOUN_TABLE)


def plural(noun: str) -> str:
    """The plural of a noun or shape of this vocabulary."""
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(noun: str) -> str:
    """The noun after "a" or "an"."""
    vowel = noun[0] in "aeio" or noun.startswith(("umb", "hour"))
    return f"{'an' if vowel else 'a'} {noun}"


# 0, 1, O and I look alike in many faces: random strings use none of them.
TEXT_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_TEXT_WORDS = """
ALARM ALPHA APPLE ART AUTO BACK BAKERY BANK BAR BEACH BLUE BOAT BOOK BREAD BUS CAFE CAKE CALL
CAMP CAR CASH CAT CHESS CITY CLUB COACH COFFEE CREAM DANCE DAY DELTA DESK DOG DOWN DREAM DRESS
EAST EASY EGG EXTRA FALL FARM FAST FERRY FRESH FUN GAME GARDEN GATE GLASS GOLD GRAND GREEN GUARD
HALL HAPPY HELLO HELP HOME HOT HOTEL HOUSE JAZZ JUMP JUNE KEY LAKE LATE LEFT LEMON LOVE LUCK
LUNCH MAGIC MAP MARKET METRO MOON MUSEUM MUSIC NEW NORTH NOVA OCEAN OPEN PARK PARTY PEACE PHONE
PLAY POOL PORT PRESS PULL PUSH QUEST QUEUE RADIO RED RENT REST RIGHT RIVER ROAD ROCK ROOM SALE
SALT SCHOOL SEA SHOP SLOW SMART SOLD SOUP SOUTH SPACE SPORT STAR STAY STOP SUGAR SUMMER SUN
SWEET TAXI TEA TEAM TEST TEXT THANKS TOUR TOWN TRACK TRAM TREE TRUST TURN ULTRA UP VALLEY VEGAN
VIEW WAIT WALK WATER WAVE WEST WHEEL WIND WOOD WORK WORLD YELLOW YES ZEBRA ZOO
"""
TEXT_WORDS: tuple[str, ...] = tuple(_TEXT_WORDS.split())
